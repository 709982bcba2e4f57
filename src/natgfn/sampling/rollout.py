"""Draw trajectories, and evaluate their probabilities."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..envs.base import AbstractEnv, State
from ..policies import AbstractPolicy, Flow, masked_log_softmax
from .proposals import AbstractProposal


class Trajectories(eqx.Module):
    """A batch of trajectories, time first, padded with their terminal states.

    Attributes:
        states: $s_0, \\dots, s_T$; leaves have shape `[times + 1, n, ...]`.
        actions: $a_0, \\dots, a_{T-1}$.
        live: whether the step was taken, or is padding.
    """

    states: State
    actions: Int[Array, "times n"]
    live: Bool[Array, "times n"]

    @property
    def before(self) -> State:
        """The state each action was taken in."""
        return jax.tree.map(lambda x: x[:-1], self.states)

    @property
    def after(self) -> State:
        """The state each action led to."""
        return jax.tree.map(lambda x: x[1:], self.states)

    @property
    def last(self) -> State:
        """The terminal states."""
        return jax.tree.map(lambda x: x[-1], self.states)

    @property
    def lengths(self) -> Int[Array, " n"]:
        return jnp.sum(self.live, axis=0)


def rollout(
    env: AbstractEnv,
    policy: AbstractPolicy,
    proposal: AbstractProposal,
    num: int,
    *,
    key: PRNGKeyArray,
) -> Trajectories:
    """Draw `num` trajectories from the source to a terminal state."""
    uniforms = jax.random.uniform(key, (env.max_steps, num))

    def act(states, uniform):
        mask = jax.vmap(env.forward_mask)(states)
        log_pf = masked_log_softmax(jax.vmap(policy)(states), mask)
        live = ~jax.vmap(env.is_terminal)(states)
        actions = jnp.where(live, invert_cdf(jnp.exp(proposal(log_pf, mask)), uniform), 0)
        moved = jax.vmap(env.step)(states, actions)
        after = jax.tree.map(
            lambda new, old: jnp.where(jnp.reshape(live, (-1,) + (1,) * (new.ndim - 1)), new, old),
            moved,
            states,
        )
        return after, (states, actions, live)

    start = jax.tree.map(lambda x: jnp.repeat(x[None], num, axis=0), env.init())
    last, (states, actions, live) = jax.lax.scan(act, start, uniforms)
    states = jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), states, last)
    return Trajectories(states, actions, live)


def invert_cdf(
    probabilities: Float[Array, "*batch actions"], uniform: Float[Array, "*batch"]
) -> Int[Array, "*batch"]:
    """The action at which the cumulative probability passes `uniform`.

    One uniform number an action draw, instead of a Gumbel for each action. Scaling by the
    last cumulative sum keeps the target strictly below it (JAX draws at most one minus an
    ulp of 1), so an action of probability zero is never chosen.
    """
    cdf = jnp.cumsum(probabilities, axis=-1)
    return jnp.sum(uniform[..., None] * cdf[..., -1:] >= cdf, axis=-1)


class PathLogProbs(NamedTuple):
    """Log-probabilities along each trajectory."""

    actions: Float[Array, "times n actions"]
    r"""$\log \pi(\cdot \mid s_t)$, zero where padded."""
    steps: Float[Array, "times n"]
    r"""$\log \pi(a_t \mid s_t)$, zero where padded."""
    forward: Float[Array, " n"]
    r"""$\log q_\theta(\tau)$."""
    backward: Float[Array, " n"]
    r"""$\log P_B(\tau \mid x)$."""


def log_probs(env: AbstractEnv, flow: Flow, paths: Trajectories) -> PathLogProbs:
    """Evaluate both policies along `paths`, once."""

    def evaluate(policy, mask, states):
        logits = jax.vmap(jax.vmap(policy))(states)
        return masked_log_softmax(logits, jax.vmap(jax.vmap(mask))(states))

    forward = evaluate(flow.forward, env.forward_mask, paths.before)
    backward = evaluate(flow.backward, env.backward_mask, paths.after)
    steps = taken(forward, paths)
    return PathLogProbs(
        actions=jnp.where(paths.live[..., None], forward, 0.0),
        steps=steps,
        forward=jnp.sum(steps, axis=0),
        backward=jnp.sum(taken(backward, paths), axis=0),
    )


def taken(table: Float[Array, "times n actions"], paths: Trajectories) -> Float[Array, "times n"]:
    """The entries of the actions that were taken, zero where padded."""
    entries = jnp.take_along_axis(table, paths.actions[..., None], axis=-1)[..., 0]
    return jnp.where(paths.live, entries, 0.0)
