"""The states and edges that an environment is checked on: all of them, or a random sample."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int, PRNGKeyArray

from ..envs import AbstractEnv, State
from ..memory import require_memory
from ..policies import UniformPolicy
from ..sampling import OnPolicy, Trajectories, rollout
from ..statespace import Numbers, StateSpace, pack, unpack

_BATCH = 2**12
_TRAJECTORIES = 1000
_EDGES = 2**17
_BYTES = 2**26  # of the sampled states, and of those that their edges lead to


@dataclass(frozen=True)
class Case:
    """Distinct states of an environment, with edges between them: all of them, or a sample.

    Attributes:
        env: the environment.
        states: its states, along a leading axis.
        terminal: which of them are.
        source: by the number of the state, for each edge.
        action: of each edge.
        target: by the number of the state, for each edge.
        backward_mask: the environment's own, of each state.
        claims: a state and an action each, which `backward_mask` lists and no edge confirms.
    """

    env: AbstractEnv
    states: State
    terminal: Bool[np.ndarray, " states"]
    source: Int[np.ndarray, " edges"]
    action: Int[np.ndarray, " edges"]
    target: Int[np.ndarray, " edges"]
    backward_mask: Bool[np.ndarray, "states actions"]
    claims: Int[np.ndarray, "claims 2"]

    @staticmethod
    def of(space: StateSpace) -> "Case":
        """Every state and every edge."""
        source, action = np.nonzero(space.child >= 0)
        target = space.child[source, action]
        mask = over(space.env.backward_mask, space.states)
        claims = np.argwhere(mask & (space.parent < 0))
        terminal = np.arange(space.num_states) >= space.num_inner
        action = action.astype(np.int32)
        return Case(space.env, space.states, terminal, source, action, target, mask, claims)

    @staticmethod
    def along(env: AbstractEnv, paths: Trajectories, edges: int = _EDGES) -> "Case":
        """The states on `paths`, by the time of their first visit, and random edges out of them,
        about so many at most."""
        edges = max(1, min(edges, _BYTES // _width(env)))
        visits = jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:]), paths.states)
        visits = pack(visits)
        numbers = Numbers(visits.shape[1])
        for rows in np.split(visits, len(paths.actions) + 1):
            numbers.of(rows)
        sampled = unpack(jax.eval_shape(env.init), numbers.rows)
        source, action = _some_actions(env, sampled, len(numbers), edges)
        children = over(env.step, jax.tree.map(lambda x: x[source], sampled), action)
        target = numbers.of(pack(children))
        states = unpack(jax.eval_shape(env.init), numbers.rows)

        mask = over(env.backward_mask, states)
        known = np.zeros_like(mask)
        known[target, action] = True
        claims = np.argwhere(mask & ~known)
        claims = np.random.default_rng(0).permutation(claims)[:edges]
        terminal = over(env.is_terminal, states)
        return Case(env, states, terminal, source, action, target, mask, claims)

    @property
    def num_states(self) -> int:
        return len(self.terminal)

    def at(self, index: Any) -> State:
        return jax.tree.map(lambda x: x[index], self.states)

    def name(self, index: Any) -> str:
        return told(self.at(int(index)))


def draw(env: AbstractEnv, key: PRNGKeyArray) -> Trajectories:
    """Uniform trajectories: `_TRAJECTORIES` of them, or as many as have room."""
    each = _width(env) * (env.max_steps + 1)
    require_memory(f"a trajectory of up to max_steps={env.max_steps:,}", each, "lower max_steps")
    fit = _BYTES // each
    num = max(1, min(_TRAJECTORIES, fit))
    policy = UniformPolicy(env.num_actions)
    return jax.jit(lambda key: rollout(env, policy, OnPolicy(), num, key=key))(key)


def _width(env: AbstractEnv) -> int:
    """The bytes that a state takes, or its mask if that takes more."""
    leaves = jax.tree.leaves(jax.eval_shape(env.init))
    return max(env.num_actions, sum(x.size * x.dtype.itemsize for x in leaves))


def _some_actions(
    env: AbstractEnv, states: State, count: int, edges: int
) -> tuple[Int[np.ndarray, " edges"], Int[np.ndarray, " edges"]]:
    """Edges out of `count` states, by state and action: all of them, or about `edges`."""
    most = min(env.num_actions, -(-edges // count))

    def draw(state, key):
        valid = env.forward_mask(state) & ~env.is_terminal(state)
        score = jnp.where(valid, jax.random.uniform(key, valid.shape), -1.0)
        score, action = jax.lax.top_k(score, most)
        return action, score >= 0

    action, valid = over(draw, states, jax.random.split(jax.random.key(1), count))
    source, place = np.nonzero(valid)
    return source, action[source, place]


def over(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function` over leading axes, as NumPy arrays, a batch at a time."""

    @jax.jit
    def mapped(arguments):
        return jax.lax.map(lambda one: function(*one), arguments, batch_size=_BATCH)

    return jax.tree.map(np.asarray, mapped(arguments))


def told(state: State) -> str:
    """A state as text."""
    return repr(jax.tree.map(lambda x: np.asarray(x).tolist(), state))


def equal(one: State, other: State) -> Bool[np.ndarray, " n"]:
    """Which states along the leading axis are the same."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    equal = [(x == y).reshape(len(x), -1).all(axis=1) for x, y in pairs]
    return np.logical_and.reduce(equal)
