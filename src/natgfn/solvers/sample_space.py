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
"""

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jaxtyping import Array, Bool, Float, Int

from ..fisher import Scalar
from ..objectives import Batch
from ..policies import Flow, Tabular, masked_log_softmax
from ..statespace import StateSpace


def gauss_newton_step(gram: Float[Array, "n n"], batch: Batch, damping: Scalar) -> Flow:
    r"""The step $\Delta$ above, for squared residuals or any penalty (by iterated least squares).

    Args:
        gram: $J J^\top$.
        batch: the residuals.
        damping: $\lambda$.
    """
    root = jnp.sqrt(batch.least_squares_weights())
    system = root[:, None] * gram * root + batch.size * damping * jnp.eye(batch.size)
    solution = jsl.cho_solve(jsl.cho_factor(system, lower=True), root * batch.residuals)
    return batch.pull(-root * solution)


def tabular_gram(space: StateSpace, flow: Flow, batch: Batch) -> Float[Array, "n n"]:
    r"""$J J^\top$ over tabular policies and $\log Z$, from the states that trajectories share."""
    if not isinstance(flow.forward, Tabular):
        raise ValueError(
            f"the sample-space solver is for tables so far, got a {type(flow.forward).__name__} "
            "forward policy"
        )
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
