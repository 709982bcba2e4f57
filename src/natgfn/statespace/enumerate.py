"""Enumerate an environment through its own functions."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, UInt64

from ..envs.base import AbstractEnv, HasModes, State
from .space import StateSpace

_BATCH = 2**16


def enumerate_states(env: AbstractEnv, *, max_states: int = 2**23) -> StateSpace:
    """Walk through every state that `env` can reach.

    Args:
        env: any environment.
        max_states: where to give up.

    Raises:
        ValueError: the graph has a cycle, a dead end, an action that merges two parents,
            more than `max_states` states, or a reward that is not a number; the message
            names the state.
    """
    if isinstance(env, StateSpace):
        return env
    if env.is_terminal(env.init()):
        raise ValueError("init is terminal: there is nothing to construct")
    rows, edges = _walk(env, max_states)
    source, action, target = edges
    num_states, num_actions = len(rows), env.num_actions

    level = _levels(env, rows, source, target)
    inner = np.zeros(num_states, bool)
    inner[source] = True
    # By level, as the dynamic programme needs it, and within one in the order of the states'
    # own numbers, as a person expects it; terminal states in that order throughout.
    order = np.lexsort((*rows.T[::-1], level * inner, ~inner))
    number = np.empty(num_states, np.int32)
    number[order] = np.arange(num_states, dtype=np.int32)
    source, target = number[source], number[target]
    rows, level, num_inner = rows[order], level[order], int(inner.sum())

    child = np.full((num_inner, num_actions), -1, np.int32)
    child[source, action] = target
    parent = np.full((num_states, num_actions), -1, np.int32)
    parent[target, action] = source
    clash = parent[target, action] != source
    if clash.any():
        at, by = target[clash][0], action[clash][0]
        raise ValueError(
            f"action {by} leads from two states to {describe(env, rows[at])}: `undo` cannot "
            "tell them apart; give the two moves different actions"
        )

    states = _unpack(env, rows)
    terminals = jax.tree.map(lambda x: x[num_inner:], states)
    log_rewards = _log_rewards(env, terminals)
    size, chunks = _chunks(np.bincount(level[:num_inner]))
    return StateSpace(
        env=env,
        states=states,
        child=child,
        parent=parent,
        level=level.astype(np.int32),
        log_rewards=log_rewards,
        modes=_modes(env, terminals, log_rewards),
        arrivals=(
            _arrivals(parent[:num_inner], num_inner),
            _arrivals(parent[num_inner:], num_inner),
        ),
        chunks=chunks,
        chunk_size=size,
        num_levels=int(level.max()) + 1,
        graded=bool((level[target] == level[source] + 1).all()),
    )


def describe(env: AbstractEnv, row: Int[np.ndarray, " columns"]) -> str:
    """One packed state as a person would write it."""
    state = jax.tree.map(lambda x: x[0].tolist(), _unpack(env, row[None]))
    return repr(state)


def _walk(env: AbstractEnv, max_states: int):
    """Breadth-first search: packed states by discovery, and (source, action, target) edges."""

    def expand(state):
        actions = jnp.arange(env.num_actions)
        children = jax.vmap(env.step, (None, 0))(state, actions)
        return children, env.forward_mask(state), env.is_terminal(state)

    expand = jax.jit(jax.vmap(expand))
    frontier = _pack(jax.tree.map(lambda x: np.asarray(x)[None], env.init()))
    found = [frontier]
    known_keys, known_ids = _hash(frontier), np.zeros(1, np.int64)
    rows_so_far, edges = frontier, []
    first = 0
    while len(frontier):
        children, mask, terminal = _batched(expand, _unpack(env, frontier), len(frontier))
        if (dead := ~terminal & ~mask.any(1)).any():
            raise ValueError(
                f"no action is valid in {describe(env, frontier[dead][0])}, which is not "
                "terminal: every construction must be able to end"
            )
        here, action = np.nonzero(mask & ~terminal[:, None])
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), children)
        rows = _pack(flat)[here * env.num_actions + action]
        keys, index, inverse = np.unique(_hash(rows), return_index=True, return_inverse=True)
        unique = rows[index]
        place = np.minimum(np.searchsorted(known_keys, keys), len(known_keys) - 1)
        old = known_keys[place] == keys
        ids = np.where(old, known_ids[place], 0)
        ids[~old] = len(rows_so_far) + np.arange((~old).sum())
        _check_hash(unique[inverse], rows)
        _check_hash(rows_so_far[ids[old]], unique[old])
        edges.append((first + here, action, ids[inverse]))

        first = len(rows_so_far)
        frontier = unique[~old]
        found.append(frontier)
        rows_so_far = np.concatenate(found)
        if len(rows_so_far) > max_states:
            raise ValueError(
                f"more than {max_states:,} states: too many to enumerate; use a smaller "
                "instance, or raise max_states"
            )
        known_keys = np.concatenate([known_keys, keys[~old]])
        known_ids = np.concatenate([known_ids, ids[~old]])
        order = np.argsort(known_keys, kind="stable")
        known_keys, known_ids = known_keys[order], known_ids[order]
    return rows_so_far, tuple(np.concatenate(column) for column in zip(*edges, strict=True))


def _levels(env: AbstractEnv, rows: np.ndarray, source: np.ndarray, target: np.ndarray):
    """Longest path from the source to each state (Kahn's algorithm, a level at a time)."""
    num_states = len(rows)
    waiting = np.bincount(target, minlength=num_states)
    order = np.argsort(source, kind="stable")
    target = target[order]
    start = np.searchsorted(source[order], np.arange(num_states + 1))
    level = np.full(num_states, -1)
    ready, depth = np.flatnonzero(waiting == 0), 0
    while len(ready):
        level[ready] = depth
        edges = np.concatenate([target[a:b] for a, b in _runs(start, ready)])
        children, arrived = np.unique(edges, return_counts=True)
        waiting[children] -= arrived
        ready, depth = children[waiting[children] == 0], depth + 1
    if (level < 0).any():
        raise ValueError(
            f"the graph has a cycle through or before {describe(env, rows[level < 0][0])}: "
            "no sequence of actions may lead back to a state"
        )
    return level


def _runs(start: np.ndarray, states: np.ndarray) -> Iterator[tuple[int, int]]:
    """Edge ranges of `states`, with neighbours joined."""
    joints = np.flatnonzero(np.diff(states) != 1)
    lows = start[states[np.concatenate([[0], joints + 1])]]
    highs = start[states[np.concatenate([joints, [len(states) - 1]])] + 1]
    return zip(lows.tolist(), highs.tolist(), strict=True)


def _chunks(level_sizes: np.ndarray) -> tuple[int, np.ndarray]:
    """Cut each level into blocks of one size: the fewest padded states and loop turns.

    A block that overruns its level is harmless: forwards, the states beyond it are
    computed again when their turn comes; backwards, they were final already.
    """
    turn = 512  # one turn of a compiled loop costs about as much as this many states
    sizes = 2 ** np.arange(int(level_sizes.max() - 1).bit_length() + 1)
    cost = [(-(-level_sizes // size)).sum() * (size + turn) for size in sizes]
    total = int(level_sizes.sum())
    size = min(int(sizes[np.argmin(cost)]), total)
    first = np.concatenate([[0], np.cumsum(level_sizes)])
    chunks = np.concatenate([np.arange(a, b, size) for a, b in pairwise(first)])
    return size, np.minimum(chunks, total - size).astype(np.int32)


def _arrivals(parent: np.ndarray, num_inner: int) -> np.ndarray:
    """The edges into each state, packed to the left."""
    num_actions = parent.shape[1]
    absent = parent < 0
    edges = np.where(absent, num_inner * num_actions, parent * num_actions + np.arange(num_actions))
    most = int((~absent).sum(1).max(initial=1))
    return np.sort(edges, axis=1)[:, :most].astype(np.int32)


def _modes(env: AbstractEnv, terminals: State, log_rewards: np.ndarray) -> np.ndarray:
    if isinstance(env, HasModes):
        return _batched(jax.jit(jax.vmap(env.is_mode)), terminals, len(log_rewards))
    return log_rewards >= log_rewards.max() - 1e-9


def _log_rewards(env: AbstractEnv, terminals: State) -> np.ndarray:
    with jax.enable_x64(True):
        count = len(jax.tree.leaves(terminals)[0])
        values = _batched(jax.jit(jax.vmap(env.log_reward)), terminals, count)
    values = np.asarray(values, np.float64)
    if (bad := np.isnan(values) | (values == np.inf)).any():
        state = jax.tree.map(lambda x: x[bad][0].tolist(), terminals)
        raise ValueError(f"log_reward of {state} is {values[bad][0]}: expected a number or -inf")
    if not (values > -np.inf).any():
        raise ValueError("every terminal state has reward zero: there is nothing to sample")
    return values


def _batched(function: Callable[[State], Any], states: State, count: int) -> Any:
    """`function` over all states, in batches of few distinct sizes (so few compilations)."""

    def one_batch(start: int, size: int) -> Any:
        padding = (1 << (size - 1).bit_length()) - size
        part = jax.tree.map(lambda x: x[start : start + size], states)
        part = jax.tree.map(lambda x: np.concatenate([x, np.repeat(x[:1], padding, 0)]), part)
        return jax.tree.map(lambda x: np.asarray(x)[:size], function(part))

    results = [one_batch(start, min(_BATCH, count - start)) for start in range(0, count, _BATCH)]
    return jax.tree.map(lambda *parts: np.concatenate(parts), *results)


def _pack(states: State) -> Int[np.ndarray, "states columns"]:
    leaves = [np.asarray(x) for x in jax.tree.leaves(states)]
    if any(not (np.issubdtype(x.dtype, np.integer) or x.dtype == bool) for x in leaves):
        raise ValueError("a state must be made of integer or boolean arrays to be enumerated")
    columns = [x.reshape(len(x), int(np.prod(x.shape[1:]))) for x in leaves]
    return np.concatenate(columns, axis=1, dtype=np.int64, casting="unsafe")


def _unpack(env: AbstractEnv, rows: Int[np.ndarray, "states columns"]) -> State:
    shapes, structure = jax.tree.flatten(jax.eval_shape(env.init))
    ends = np.cumsum([int(np.prod(x.shape)) for x in shapes])
    columns = np.split(rows, ends[:-1], axis=1)
    leaves = [c.reshape(-1, *x.shape).astype(x.dtype) for c, x in zip(columns, shapes, strict=True)]
    return jax.tree.unflatten(structure, leaves)


def _hash(rows: Int[np.ndarray, "states columns"]) -> UInt64[np.ndarray, " states"]:
    """64 well-mixed bits a row (the finaliser of splitmix64 after each column)."""
    key = np.zeros(len(rows), np.uint64)
    for column in rows.T.astype(np.uint64):
        key = (key ^ column) + np.uint64(0x9E3779B97F4A7C15)
        key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        key = key ^ (key >> np.uint64(31))
    return key


def _check_hash(expected: np.ndarray, rows: np.ndarray) -> None:
    if not np.array_equal(expected, rows):
        raise RuntimeError("two states have the same 64-bit hash; reorder the state's leaves")
