"""Draw trajectories, and evaluate their probabilities."""

from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from ..envs import AbstractEnv, State
from ..policies import AbstractPolicy, Flow, Visits, outputs
from .asking import asking
from .proposals import AbstractProposal, OnPolicy
from .sharing import devices, joined, own_part, require_parts


class Trajectories(eqx.Module):
    """A batch of trajectories, time first, padded with their terminal states.

    Attributes:
        states: $s_0, \\dots, s_T$; leaves have shape `[times + 1, n, ...]`.
        actions: $a_0, \\dots, a_{T-1}$.
        live: whether the step was taken, or is padding.
        visits: what the policy that drew them was evaluated on, if that was kept: the states
            `before`, raveled, with their logits; of this device's own part of the trajectories.
    """

    states: State
    actions: Int[Array, "times n"]
    live: Bool[Array, "times n"]
    visits: Visits | None = None

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
    keep: bool = False,
) -> Trajectories:
    """Draw `num` trajectories from the source to a terminal state.

    Args:
        env: the environment.
        policy: the forward policy.
        proposal: from its probabilities to those that are drawn from.
        num: how many.
        key: of the draws.
        keep: whether to keep what the policy said (`Trajectories.visits`), for whoever evaluates
            the same policy along the trajectories.
    """

    def law(states, logits):
        mask = jax.vmap(env.forward_mask)(states)
        return jnp.cumsum(jnp.exp(proposal(policy.log_probs(logits, mask), mask)), axis=-1)

    own = require_parts(f"{num} trajectories", num, devices())
    ask = asking(env, policy, law, own)

    def act(states, live, uniform, asked):
        cdf, asked = ask.cumulative(states, live, asked)
        actions = pick(cdf, uniform)
        return actions, jax.vmap(env.step)(states, actions), asked

    start = jax.tree.map(lambda x: jnp.repeat(x[None], own, axis=0), env.init())
    paths, asked = _walk(act, start, jax.vmap(env.is_terminal), env.max_steps, key, ask.start())
    visits = ask.visits(asked, paths.before, paths.live) if keep else None
    return replace(joined(paths, axis=1), visits=visits)


def draw_objects(env: AbstractEnv, policy: AbstractPolicy, num: int, *, key: PRNGKeyArray) -> State:
    """Terminal states drawn from a forward policy, along a leading axis; in parts if many."""
    size = sum(np.asarray(x).nbytes for x in jax.tree.leaves(env.init())) * (env.max_steps + 1)
    together = min(num, max(1, _TOGETHER // size))
    if together == num:
        return _ends(env, policy, num, key)
    keys = jax.random.split(key, -(-num // together))
    parts = [_ends(env, policy, together, one) for one in keys]
    return jax.tree.map(lambda *x: jnp.concatenate(x)[:num], *parts)


_TOGETHER = 2**28  # bytes of the states of trajectories that are drawn together


@eqx.filter_jit
def _ends(env: AbstractEnv, policy: AbstractPolicy, num: int, key: PRNGKeyArray) -> State:
    return rollout(env, policy, OnPolicy(), num, key=key).last


def rollback(
    env: AbstractEnv, policy: AbstractPolicy, ends: State, *, key: PRNGKeyArray
) -> Trajectories:
    """Draw a trajectory to each of the terminal states `ends` from the backward policy."""

    def law(states, logits):
        log_pb = policy.log_probs(logits, jax.vmap(env.backward_mask)(states))
        return jnp.cumsum(jnp.exp(log_pb), axis=-1)

    ends = own_part(ends)
    ask = asking(env, policy, law, jax.tree.leaves(ends)[0].shape[0], backwards=True)

    def act(states, live, uniform, asked):
        cdf, asked = ask.cumulative(states, live, asked)
        actions = pick(cdf, uniform)
        return actions, jax.vmap(env.undo)(states, actions), asked

    def at_source(states):
        return ~jnp.any(jax.vmap(env.backward_mask)(states), axis=1)

    back, _ = _walk(act, ends, at_source, env.max_steps, key, ask.start())
    lengths, times = back.lengths, jnp.arange(env.max_steps + 1)[:, None]

    def turn(x, index):
        index = jnp.reshape(index, index.shape + (1,) * (x.ndim - 2))
        return jnp.take_along_axis(x, index, axis=0)

    states = jax.tree.map(lambda x: turn(x, jnp.maximum(lengths - times, 0)), back.states)
    actions = turn(back.actions, jnp.maximum(lengths - 1 - times[:-1], 0))
    live = times[:-1] < lengths
    return joined(Trajectories(states, jnp.where(live, actions, 0), live), axis=1)


def retrace(
    env: AbstractEnv, actions: Int[Array, "times n"], lengths: Int[Array, " n"]
) -> Trajectories:
    """The trajectories of given actions."""
    actions, lengths = own_part(actions, axis=1), own_part(lengths)
    live = jnp.arange(len(actions))[:, None] < lengths
    start = jax.tree.map(lambda x: jnp.repeat(x[None], lengths.size, axis=0), env.init())

    def follow(now, step):
        action, alive = step
        moved = jax.vmap(env.step)(now, action)
        now = jax.tree.map(lambda new, old: _where(alive, new, old), moved, now)
        return now, now

    _, later = jax.lax.scan(follow, start, (actions, live))
    states = jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), start, later)
    return joined(Trajectories(states, jnp.where(live, actions, 0), live), axis=1)


def _walk(
    act, start: State, finished, times: int, key: PRNGKeyArray, asked: PyTree
) -> tuple[Trajectories, PyTree]:
    """Let every state act until all have finished, and no longer; also what was carried along.

    The states are this device's own part. Random numbers belong to trajectories: those of all are
    drawn, so that it makes no difference which device has one.
    """
    num = jax.tree.leaves(start)[0].shape[0]
    uniforms = own_part(jax.random.uniform(key, (times, num * devices())), axis=1)

    class Walk(NamedTuple):
        time: Int[Array, ""]
        now: State
        live: Bool[Array, " n"]
        states: State
        actions: Int[Array, "times n"]
        lengths: Int[Array, " n"]
        asked: PyTree

    def advance(walk: Walk) -> Walk:
        actions, moved, asked = act(walk.now, walk.live, uniforms[walk.time], walk.asked)
        now = jax.tree.map(lambda new, old: _where(walk.live, new, old), moved, walk.now)
        return Walk(
            walk.time + 1,
            now,
            walk.live & ~finished(now),
            jax.tree.map(lambda x, y: x.at[walk.time + 1].set(y), walk.states, now),
            walk.actions.at[walk.time].set(jnp.where(walk.live, actions, 0).astype(jnp.int32)),
            walk.lengths + walk.live,
            asked,
        )

    states = jax.tree.map(lambda x: jnp.zeros((times + 1, *x.shape), x.dtype).at[0].set(x), start)
    blank = jnp.zeros((times, num), jnp.int32)
    first = Walk(jnp.array(0), start, ~finished(start), states, blank, blank[0], asked)
    done = jax.lax.while_loop(lambda w: jnp.any(w.live) & (w.time < times), advance, first)
    written = jnp.arange(times + 1) <= done.time
    states = jax.tree.map(lambda x, last: _where(written, x, last), done.states, done.now)
    live = jnp.arange(times)[:, None] < done.lengths
    return Trajectories(states, done.actions, live), done.asked


def _where(condition: Bool[Array, " n"], x: Array, y: Array) -> Array:
    return jnp.where(jnp.reshape(condition, (-1,) + (1,) * (x.ndim - 1)), x, y)


def invert_cdf(
    probabilities: Float[Array, "*#batch actions"], uniform: Float[Array, "*#batch"]
) -> Int[Array, "*#batch"]:
    """The action at which the cumulative probability passes `uniform`.

    One uniform number an action draw, instead of a Gumbel for each action.
    """
    return pick(jnp.cumsum(probabilities, axis=-1), uniform)


def pick(
    cdf: Float[Array, "*#batch actions"], uniform: Float[Array, "*#batch"]
) -> Int[Array, "*#batch"]:
    """The same, from cumulative probabilities.

    Scaling by the last one keeps the target strictly below it (JAX draws at most one minus an
    ulp of 1), so an action of probability zero is never chosen.
    """
    return jnp.sum(uniform[..., None] * cdf[..., -1:] >= cdf, axis=-1)


class PathLogProbs(NamedTuple):
    """Log-probabilities along each trajectory."""

    actions: Float[Array, "times n actions"]
    r"""$\log \pi(\cdot \mid s_t)$, zero where padded."""
    steps: Float[Array, "times n"]
    r"""$\log \pi(a_t \mid s_t)$, zero where padded."""
    back_steps: Float[Array, "times n"]
    r"""$\log P_B(a_t \mid s_{t+1})$, zero where padded."""

    @property
    def forward(self) -> Float[Array, " n"]:
        r"""$\log q_\theta(\tau)$."""
        return jnp.sum(self.steps, axis=0)

    @property
    def backward(self) -> Float[Array, " n"]:
        r"""$\log P_B(\tau \mid x)$."""
        return jnp.sum(self.back_steps, axis=0)


def log_probs(env: AbstractEnv, flow: Flow, paths: Trajectories) -> PathLogProbs:
    """Evaluate both policies along `paths`, once."""
    live = paths.live.ravel()

    def evaluate(policy, mask, states, visits):
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), states)
        if policy.by_visits:
            logits = outputs(policy, Visits.of(env, flat, live) if visits is None else visits)
        else:
            logits = policy.many(flat, live)
        logits = logits.reshape(*paths.live.shape, -1)
        return policy.log_probs(logits, jax.vmap(jax.vmap(mask))(states))

    forward = evaluate(flow.forward, env.forward_mask, paths.before, paths.visits)
    backward = evaluate(flow.backward, env.backward_mask, paths.after, None)
    return PathLogProbs(
        actions=jnp.where(paths.live[..., None], forward, 0.0),
        steps=taken(forward, paths),
        back_steps=taken(backward, paths),
    )


def taken(table: Float[Array, "times n actions"], paths: Trajectories) -> Float[Array, "times n"]:
    """The entries of the actions that were taken, zero where padded."""
    entries = jnp.take_along_axis(table, paths.actions[..., None], axis=-1)[..., 0]
    return jnp.where(paths.live, entries, 0.0)
