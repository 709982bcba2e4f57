"""Enumerate an environment through its own functions."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..envs import AbstractEnv, HasModes, State
from ..memory import require_memory
from .rows import Numbers, describe, pack, unpack
from .space import StateSpace

_BATCH = 2**16
_CHILDREN = 2**16  # of one block: fewer are mostly overhead, more delay the end of a hopeless walk
_CHILD_BYTES = 2**24
_LOOK = 2**14  # states after which it is seen whether there is memory; then at each doubling
_EDGE, _ENTRIES = 48, 8  # bytes: of an edge, twice while they are joined; of child and parent
_SMALL_BLOCKS = 128  # computed as large ones: as long as it takes to compile their own size


class TooManyStates(ValueError):
    """An environment has more states than are to be listed."""


def enumerate_states(env: AbstractEnv, *, max_states: int = 2**23) -> StateSpace:
    """Walk through every state that `env` can reach.

    Args:
        env: any environment.
        max_states: where to give up.

    Raises:
        TooManyStates: there are more than `max_states`; said as soon as so many were found.
        ValueError: the graph has a cycle, a dead end, a trajectory longer than `max_steps`, an
            action that merges two parents, or a reward that is not a number; the message names
            the state.
    """
    if isinstance(env, StateSpace):
        return env
    if env.is_terminal(env.init()):
        raise ValueError("init is terminal: there is nothing to construct")
    rows, edges = _walk(env, max_states)
    source, action, target = edges
    num_states, num_actions = len(rows), env.num_actions

    level = _levels(env, rows, source, target)
    _require_end(env, rows[np.argmax(level)], int(level.max()))
    inner = np.zeros(num_states, bool)
    inner[source] = True
    # By level, as the dynamic programme needs it, and within one in the order of the states'
    # own numbers, as a person expects it; terminal states in that order throughout.
    states = unpack(jax.eval_shape(env.init), rows)
    order = np.lexsort((*_columns(states)[::-1], level * inner, ~inner))
    number = np.empty(num_states, np.int32)
    number[order] = np.arange(num_states, dtype=np.int32)
    source, target = number[source], number[target]
    states = jax.tree.map(lambda x: x[order], states)
    level, num_inner = level[order], int(inner.sum())

    child = np.full((num_inner, num_actions), -1, np.int32)
    child[source, action] = target
    parent = np.full((num_states, num_actions), -1, np.int32)
    parent[target, action] = source
    clash = parent[target, action] != source
    if clash.any():
        at, by = order[target[clash][0]], action[clash][0]
        raise ValueError(
            f"action {by} leads from two states to {describe(env, rows[at])}: `undo` cannot "
            "tell them apart; give the two moves different actions"
        )

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


def _walk(env: AbstractEnv, max_states: int):
    """Breadth-first search: packed states by discovery, and (source, action, target) edges."""

    def expand(state):
        actions = jnp.arange(env.num_actions)
        children = jax.vmap(env.step, (None, 0))(state, actions)
        return children, env.forward_mask(state), env.is_terminal(state)

    expand = jax.jit(jax.vmap(expand))
    like = jax.eval_shape(env.init)
    init = pack(jax.tree.map(lambda x: np.asarray(x)[None], env.init()))
    numbers, edges = Numbers(init.shape[1]), []
    numbers.of(init)
    sizes, first, looked = _Sizes(_block(env)), 0, _LOOK
    depth, deeper = 0, 1  # states from number `deeper` on take more than `depth` actions
    with _said_aloud() as say:
        while first < len(numbers):
            if first >= deeper:
                depth, deeper = depth + 1, len(numbers)
                _require_end(env, numbers.rows[first], depth)
            block = numbers.rows[first : first + sizes.most]
            size = sizes.of(len(block))
            children, mask, terminal = _padded(expand, unpack(like, block), len(block), size)
            if (dead := ~terminal & ~mask.any(1)).any():
                raise ValueError(
                    f"no action is valid in {describe(env, block[dead][0])}, which is not "
                    "terminal: every construction must be able to end"
                )
            here, action = np.nonzero(mask & ~terminal[:, None])
            target = numbers.of(pack(jax.tree.map(itemgetter((here, action)), children)))
            if len(numbers) > max_states:
                raise TooManyStates(
                    f"more than {max_states:,} states: too many to enumerate; use a smaller "
                    "instance, or raise max_states"
                )
            edges.append((first + here, action, target))
            if len(numbers) > looked:
                looked = 2 * len(numbers)
                _require_room(env, len(numbers), sum(len(part) for part, _, _ in edges))
            first += len(block)
            say(len(numbers))
    return numbers.rows, tuple(np.concatenate(column) for column in zip(*edges, strict=True))


def _require_room(env: AbstractEnv, states: int, edges: int) -> None:
    """Refuse to go on where what has been found would not fit once it is a table."""
    require_memory(
        f"a list of {states:,} states of {type(env).__name__}, or more,",
        _EDGE * edges + _ENTRIES * env.num_actions * states,
        "lower max_states, or do without a list (enumerate=False)",
    )


def _require_end(env: AbstractEnv, row: np.ndarray, depth: int) -> None:
    """Refuse a state that takes `depth` actions or more, if that is too many."""
    if depth > env.max_steps:
        raise ValueError(
            f"it takes {depth} steps to {describe(env, row)}, but max_steps is {env.max_steps}: "
            "raise it, or end every trajectory by then"
        )


class _Sizes:
    """How many states to compute a block for: few sizes, as each is compiled.

    A smaller size than the largest is worth it once many blocks would have done with it, as they
    do in long and narrow environments.
    """

    def __init__(self, most: int):
        self.most = most
        self._blocks: Counter[int] = Counter()

    def of(self, count: int) -> int:
        size = 32
        while size < count:
            size *= 32
        self._blocks[size] += 1
        return size if size < self.most and self._blocks[size] > _SMALL_BLOCKS else self.most


@contextmanager
def _said_aloud() -> Iterator[Callable[[int], None]]:
    """For the number of states so far: a line that a terminal shows if it takes long."""
    due, said = time.monotonic() + 1, False

    def say(count: int) -> None:
        nonlocal due, said
        if time.monotonic() > due and sys.stderr.isatty():
            print(f"\rlisting states: {count:,} so far", end="", file=sys.stderr, flush=True)
            due, said = time.monotonic() + 1, True

    try:
        yield say
    finally:
        if said:
            print(file=sys.stderr)


def _block(env: AbstractEnv) -> int:
    """How many states to expand together: as many as have no more children than fit a block."""
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(env.init)))
    return max(1, min(_CHILDREN, _CHILD_BYTES // size) // env.num_actions)


def _columns(states: State) -> list[np.ndarray]:
    """Each number that a state consists of, for all states."""
    flat = [x.reshape(len(x), int(np.prod(x.shape[1:]))) for x in jax.tree.leaves(states)]
    return [column for leaf in flat for column in leaf.T]


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

    def one_batch(start: int) -> Any:
        part = jax.tree.map(lambda x: x[start : start + _BATCH], states)
        size = min(_BATCH, count - start)
        return _padded(function, part, size, 1 << (size - 1).bit_length())

    results = [one_batch(start) for start in range(0, count, _BATCH)]
    return jax.tree.map(lambda *parts: np.concatenate(parts), *results)


def _padded(function: Callable[[State], Any], states: State, count: int, size: int) -> Any:
    """`function` over `count` states, computed for `size` of them."""
    full = jax.tree.map(lambda x: np.concatenate([x, np.repeat(x[:1], size - count, 0)]), states)
    return jax.tree.map(lambda x: np.asarray(x)[:count], function(full))
