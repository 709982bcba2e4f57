r"""The natural gradient in sample space: an $N \times N$ system instead of a $p \times p$ one.

Let $J$ be the $N \times p$ matrix of residual gradients $\nabla \delta_i$. The step
$$\Delta = -\arg\min_v \tfrac1N \sum_i \omega_i\, (\delta_i - J_i v)^2 + \lambda |v|^2
        = -J^\top B\, (B J J^\top B + N \lambda I)^{-1} B\, \delta, \qquad B = \Omega^{1/2},$$
is Gauss-Newton on the batch's residuals. Since the forward part of $\nabla\delta_i$ is the
score of the trajectory, the matrix $J^\top J / N$ restricted to $\theta$ is an unbiased estimate
of the trajectory Fisher, and the step is half the damped natural gradient of squared trajectory
balance. Unlike the per-step form it keeps the cross-time terms of the batch, so that the
states along one trajectory share its residual instead of each correcting all of it: the unit
step is the right one, and there is no rate to choose.

A batch that is small beside the policy says little about it. The proximal form remembers:
$$\phi_k = \arg\min_v \tfrac1N \sum_i \omega_i\, (\delta_i - J_i v)^2
         + \lambda\, |v - \mu\, \phi_{k-1}|_D^2,
  \qquad \theta \leftarrow \theta - (1 - \mu)\, \phi_k,$$
which is the step above for $\mu = 0$ and $D = I$, and SPRING (Goldshlager et al., 2024) for
$D = I$. A diagonal $D$ says how far each parameter may go, which the few rows of a batch cannot;
with Adam's, the step is Adam's for $\lambda \to \infty$ and Gauss-Newton for $\lambda \to 0$.
"""

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Bool, Float, Int

from ..envs.base import AbstractEnv
from ..fisher import Scalar
from ..objectives import Batch, residual_rows
from ..policies import Flow, Tabular, masked_log_softmax
from ..statespace import StateSpace, require_space


def proximal_step(
    gram: Float[Array, "n n"] | None,
    batch: Batch,
    damping: Scalar,
    centre: Flow | None = None,
    scale: Flow | None = None,
) -> Flow:
    r"""$\phi_k$ above, for squared residuals or any penalty (by iterated least squares).

    Args:
        gram: $J D^{-1} J^\top$; None where there are too many rows for it, as with objectives
            that have many residuals a trajectory: then the system is solved by conjugate
            gradients, with products of $J$ alone.
        batch: the residuals.
        damping: $\lambda$.
        centre: $\mu\, \phi_{k-1}$, zero if None.
        scale: the diagonal of $D^{-1}$, ones if None.
    """
    root = jnp.sqrt(batch.least_squares_weights())
    left = batch.residuals if centre is None else batch.residuals - batch.push(centre)
    if gram is None:
        solution = _iterate(batch, root, damping, scale, root * left)
    else:
        system = root[:, None] * gram * root + batch.size * damping * jnp.eye(batch.size)
        solution = jsl.cho_solve(jsl.cho_factor(system, lower=True), root * left)
    step = batch.pull(root * solution)
    if scale is not None:
        step = jax.tree.map(jnp.multiply, step, scale)
    return step if centre is None else jax.tree.map(jnp.add, centre, step)


def _iterate(
    batch: Batch,
    root: Float[Array, " rows"],
    damping: Scalar,
    scale: Flow | None,
    right: Float[Array, " rows"],
) -> Float[Array, " rows"]:
    def product(x):
        step = batch.pull(root * x)
        if scale is not None:
            step = jax.tree.map(jnp.multiply, step, scale)
        return root * batch.push(step) + batch.size * damping * x

    return cg(product, right, tol=_TOLERANCE, maxiter=_ITERATIONS)[0]


_TOLERANCE, _ITERATIONS = 1e-3, 100
"""Of conjugate gradients, in the relative residual."""


def residual_gram(
    env: AbstractEnv, flow: Flow, batch: Batch, scale: Flow | None = None
) -> Float[Array, "n n"]:
    r"""$J D^{-1} J^\top$, for a table from shared states, for a network from the rows of $J$.

    Where the rows of a whole batch would not fit, they are made in blocks, each as often as
    there are blocks.
    """
    if isinstance(flow.forward, Tabular):
        if scale is not None:
            raise ValueError("a table has no scale in sample space: set scaled to false")
        return tabular_gram(require_space(env, "a table in sample space"), flow, batch)
    inverse = 1.0 if scale is None else ravel_pytree(scale)[0]
    if batch.rows is not None:
        rows = batch.rows * jnp.sqrt(inverse)  # one matrix to read, not two
        return rows @ rows.T
    starts = jnp.arange(0, batch.size, _BLOCK)

    def block(start):
        index = jnp.minimum(start + jnp.arange(_BLOCK), batch.size - 1)
        some = jax.tree.map(lambda x: x[:, index], batch.paths)
        return residual_rows(batch.objective, env, flow, some)[1]

    def strip(start):
        left = block(start) * inverse
        return jax.lax.map(lambda other: left @ block(other).T, starts)

    blocks = jax.lax.map(strip, starts)
    gram = jnp.moveaxis(blocks, 2, 1).reshape(2 * (starts.size * _BLOCK,))
    return gram[: batch.size, : batch.size]


_BLOCK = 64
"""Trajectories in a block."""


def tabular_gram(space: StateSpace, flow: Flow, batch: Batch) -> Float[Array, "n n"]:
    r"""$J J^\top$ over tabular policies and $\log Z$, from the states that trajectories share."""
    paths = batch.paths
    gram = 1.0 + score_gram(space, batch)
    if isinstance(flow.backward, Tabular):
        logits = jax.vmap(jax.vmap(flow.backward))(paths.after)
        log_pb = masked_log_softmax(logits, jax.vmap(jax.vmap(space.backward_mask))(paths.after))
        gram = gram + _shared(space, paths.after, paths.actions, paths.live, log_pb)
    return gram


def score_gram(space: StateSpace, batch: Batch) -> Float[Array, "n n"]:
    r"""$z_i^\top z_j$ of a tabular forward policy."""
    paths = batch.paths
    return _shared(space, paths.before, paths.actions, paths.live, batch.probs.actions)


def _shared(
    space: StateSpace,
    states: Int[Array, "times n"],
    actions: Int[Array, "times n"],
    live: Bool[Array, "times n"],
    log_probs: Float[Array, "times n actions"],
) -> Float[Array, "n n"]:
    r"""Inner products of trajectory scores.

    Two visits contribute only if they are to the same state, and then
    $(e_a - \pi)^\top (e_b - \pi) = 1\{a = b\} + u_a + u_b$ with $u_a = \tfrac12 |\pi|^2 - \pi_a$.
    A trajectory visits each level of the graph at most once, so it is enough to compare
    trajectories level by level.
    """
    probs = jnp.exp(log_probs)
    taken = jnp.take_along_axis(probs, actions[..., None], axis=-1)[..., 0]
    u = jnp.sum(probs**2, axis=-1) / 2 - taken
    # Padding differs from every state, and from padding in other trajectories.
    states = jnp.where(live, states, -1 - jnp.arange(live.shape[1]))
    if not space.graded:
        level = jnp.where(live, jnp.asarray(space.level)[states], space.num_levels)
        place = (level, jnp.arange(live.shape[1]))
        shape = (space.num_levels, live.shape[1])
        blank = jnp.broadcast_to(-1 - jnp.arange(shape[1]), shape)
        states = blank.at[place].set(states, mode="drop")
        actions = jnp.zeros(shape, actions.dtype).at[place].set(actions, mode="drop")
        u = jnp.zeros(shape, u.dtype).at[place].set(u, mode="drop")

    # The diagonal of padded rows would count 1 + 2u: `u` is set so that it counts nothing.
    u = jnp.where(states >= 0, u, -0.5)
    # One fused reduction, a dozen times faster on the CPU than a scan over the levels.
    value = (actions[:, :, None] == actions[:, None]) + u[:, :, None] + u[:, None]
    return jnp.sum(jnp.where(states[:, :, None] == states[:, None], value, 0.0), axis=0)
