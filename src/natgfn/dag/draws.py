"""Independent graphs from the exact law: layer by layer, and then the parents of each vertex."""

import numpy as np
from jaxtyping import Float, Int

from .layers import Sums, log_following, step
from .subsets import indicators, subsets

_CELLS = 2**22


def draw(
    log_weights: Float[np.ndarray, "d sets"],
    sums: Sums,
    log_completions: Float[np.ndarray, " pairs"],
    count: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, "count d d"]:
    r"""Graphs, row is source.

    From $(U, L)$ the layer $K$ follows with probability proportional to
    $h(U \cup K, K) \prod_{j \in K} B_j(U, L)$ (`layers`), and the parents of its vertices are
    independent of each other. Graphs that have reached the same $U$ go on together.
    """
    size = len(log_weights)
    placed, last = np.zeros(count, np.int64), np.zeros(count, np.int64)
    parents = np.zeros((count, size), np.int64)
    # A set is a smaller number than those that contain it, so each U comes once.
    while (here := int(placed.min())) != sums.everything:
        (group,) = np.nonzero(placed == here)
        now = step(sums, here)
        log_next = log_following(sums, now, here, log_completions)
        weights = np.exp(log_next - log_next.max())[:, None] * now.products
        chosen = np.empty(len(group), np.int64)
        for layer in np.unique(last[group]):
            same = last[group] == layer
            column = weights[:, np.searchsorted(now.last, layer)]
            chosen[same] = now.following[_pick(column[None], rng.random(same.sum()))]
        for child in now.rest if here else ():
            rows = group[chosen >> child & 1 == 1]
            parents[rows, child] = _draw_parents(log_weights[child], here, last[rows], rng)
        placed[group] |= chosen
        last[group] = chosen
    return np.swapaxes(indicators(parents, size), 1, 2).astype(np.int8)


def _draw_parents(
    log_weights: Float[np.ndarray, " sets"],
    placed: int,
    last: Int[np.ndarray, " n"],
    rng: np.random.Generator,
) -> Int[np.ndarray, " n"]:
    """Parent sets within `placed` that meet each of the last layers."""
    sets = subsets(placed)
    log_local = log_weights[sets]
    chosen = np.empty(len(last), np.int64)
    rows = max(1, _CELLS // len(sets))
    for start in range(0, len(last), rows):
        some = slice(start, start + rows)
        logs = np.where(sets & last[some, None], log_local, -np.inf)
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        chosen[some] = sets[_pick(weights, rng.random(len(weights)))]
    return chosen


def _pick(
    weights: Float[np.ndarray, "rows choices"], uniform: Float[np.ndarray, " n"]
) -> Int[np.ndarray, " n"]:
    """A choice for each number in [0, 1): from its row, or all from the only row."""
    sums = np.cumsum(weights, axis=1)
    # Never a choice of weight zero: the first whose sum exceeds the number.
    if len(sums) == 1:
        return np.searchsorted(sums[0], uniform * sums[0, -1], side="right")
    return np.argmax(sums > (uniform * sums[:, -1])[:, None], axis=1)
