r"""The trajectory Fisher in its score form: outer products over whole trajectories.

With $g_i = \nabla \delta_i$ the gradient of the residual of trajectory $i$ in all parameters of a
`Flow`,
$$G = \frac1N \sum_i \omega_i\, g_i g_i^\top = \frac1N J^\top \Omega J,$$
whose block of the forward policy is the outer product of trajectory scores, an unbiased estimate
of the Fisher. Unlike a sum over visits it keeps the cross-time terms of the batch. It has at most
$N$ directions: what a solver needs of it is the Gram matrix $J J^\top$ of its rows.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from ..envs import AbstractEnv
from ..objectives import Batch, residual_rows
from ..policies import AbstractPolicy, Flow, Tabular, masked_log_softmax
from ..sampling import devices, joined, own_part
from ..statespace import StateSpace, require_space


class ScoreFisher(eqx.Module):
    """$G$ on all parameters of a flow, from a batch that was evaluated there."""

    env: AbstractEnv
    flow: Flow
    batch: Batch

    def mv(self, vector: Flow) -> Flow:
        """$G v$."""
        return self.batch.pull(self.batch.omega / self.batch.size * self.batch.push(vector))

    def gram(self, scale: Flow | None = None) -> Float[Array, "n n"] | None:
        r"""$J D^{-1} J^\top$ for the diagonal `scale` of $D^{-1}$, ones if None.

        None for objectives with many residuals a trajectory: there are too many rows.
        """
        if not self.batch.objective.by_trajectory:
            return None
        return residual_gram(self.env, self.flow, self.batch, scale)


def residual_gram(
    env: AbstractEnv, flow: Flow, batch: Batch, scale: Flow | None = None, block: int = 64
) -> Float[Array, "n n"]:
    r"""$J D^{-1} J^\top$: of a table from shared states, of a perceptron from its activations, of
    any other policy from the rows of $J$.

    Those are made in blocks of so many trajectories, each as often as there are blocks. Each device
    computes the rows of the Gram matrix that belong to its own part.
    """
    if isinstance(flow.forward, Tabular):
        if scale is not None:
            raise ValueError("a table has no scale in sample space: set scaled to false")
        return tabular_gram(env, flow, batch)
    if batch.tape is not None:
        return batch.tape.gram(scale)
    inverse = 1.0 if scale is None else ravel_pytree(scale)[0]
    every = (batch.paths, batch.probs)
    own, size = own_part(every, axis=1), batch.size // devices()
    block = min(block, size)
    starts = jnp.arange(0, batch.size, block)

    def rows_from(start, trajectories, num):
        index = jnp.minimum(start + jnp.arange(block), num - 1)
        return residual_rows(env, flow, *jax.tree.map(lambda x: x[:, index], trajectories))

    def strip(start):
        left = rows_from(start, own, size) * inverse
        return jax.lax.map(lambda other: left @ rows_from(other, every, batch.size).T, starts)

    blocks = jax.lax.map(strip, jnp.arange(0, size, block))
    gram = jnp.moveaxis(blocks, 2, 1).reshape(len(blocks) * block, -1)
    return joined(gram[:size, : batch.size])


def tabular_gram(env: AbstractEnv, flow: Flow, batch: Batch) -> Float[Array, "n n"]:
    r"""$J J^\top$ over tabular policies and $\log Z$, from the rows that trajectories share."""
    paths = batch.paths
    gram = 1.0 + score_gram(env, flow.forward, batch)
    if isinstance(flow.backward, Tabular):
        space = require_space(env, "a backward table in sample space", "policies.Uniform")
        logits = jax.vmap(jax.vmap(flow.backward))(paths.after)
        log_pb = masked_log_softmax(logits, jax.vmap(jax.vmap(space.backward_mask))(paths.after))
        gram = gram + _shared(space, paths.after, paths.actions, paths.live, log_pb)
    return gram


def score_gram(env: AbstractEnv, policy: AbstractPolicy, batch: Batch) -> Float[Array, "n n"]:
    r"""$z_i^\top z_j$ of a tabular forward policy."""
    paths = batch.paths
    assert isinstance(policy, Tabular)
    # A context belongs to one step.
    space = require_space(env, "a table in sample space") if policy.contexts is None else None
    rows = policy.rows(paths.before)
    return _shared(space, rows, paths.actions, paths.live, batch.probs.actions)


def _shared(
    space: StateSpace | None,
    states: Int[Array, "times n"],
    actions: Int[Array, "times n"],
    live: Bool[Array, "times n"],
    log_probs: Float[Array, "times n actions"],
) -> Float[Array, "n n"]:
    r"""Inner products of trajectory scores.

    Two visits contribute only if they are to the same state, and then
    $(e_a - \pi)^\top (e_b - \pi) = 1\{a = b\} + u_a + u_b$ with $u_a = \tfrac12 |\pi|^2 - \pi_a$.
    A trajectory visits each level of the graph at most once, so it is enough to compare
    trajectories level by level; time by time, without a space.
    """
    probs = jnp.exp(log_probs)
    taken = jnp.take_along_axis(probs, actions[..., None], axis=-1)[..., 0]
    u = jnp.sum(probs**2, axis=-1) / 2 - taken
    # Padding differs from every state, and from padding in other trajectories.
    states = jnp.where(live, states, -1 - jnp.arange(live.shape[1]))
    if space is not None and not space.graded:
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
    own_states, own_actions, own_u = own_part((states, actions, u), axis=1)
    value = (own_actions[:, :, None] == actions[:, None]) + own_u[:, :, None] + u[:, None]
    same = own_states[:, :, None] == states[:, None]
    return joined(jnp.sum(jnp.where(same, value, 0.0), axis=0))
