"""Independent graphs from the exact law: layer by layer, and then the parents of each vertex."""

from collections.abc import Callable
from functools import partial

import numpy as np
from jaxtyping import Float, Int

from .layers import Sums, log_following, step
from .subsets import indicators

_CELLS = 2**18  # of a matrix that fits the cache


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
    while (here := int(placed.min(initial=sums.everything))) != sums.everything:
        (group,) = np.nonzero(placed == here)
        now = step(sums, here)
        log_next = log_following(sums, now, here, log_completions)
        weights = np.exp(log_next - log_next.max())[:, None] * now.products
        columns = np.searchsorted(now.last, last[group])
        chosen = now.following[_choose(partial(np.take, weights.T, axis=0), columns, rng)]
        for child in now.rest if here else ():
            rows = group[chosen >> child & 1 == 1]
            if len(rows):
                log_local = log_weights[child, now.last]
                local = np.exp(log_local - log_local.max())
                meeting = partial(_meeting, now.last, local)
                parents[rows, child] = now.last[_choose(meeting, last[rows], rng)]
        placed[group] |= chosen
        last[group] = chosen
    return np.swapaxes(indicators(parents, size), 1, 2).astype(np.int8)


def _meeting(
    sets: Int[np.ndarray, " sets"],
    weights: Float[np.ndarray, " sets"],
    layers: Int[np.ndarray, " n"],
) -> Float[np.ndarray, "n sets"]:
    """For each layer, the weights of the sets that meet it."""
    return np.where(sets & layers[:, None], weights, 0.0)


def _choose(
    weights: Callable[[np.ndarray], np.ndarray],
    cases: Int[np.ndarray, " n"],
    rng: np.random.Generator,
) -> Int[np.ndarray, " n"]:
    """A choice for each case, from its row of `weights(cases)`; never one of weight zero."""
    uniform = rng.random(len(cases))
    first = np.cumsum(weights(cases[:1])[0])
    if np.all(cases == cases[0]):
        return np.searchsorted(first, uniform * first[-1], side="right")
    rows = max(1, _CELLS // len(first))
    chosen = np.empty(len(cases), np.int64)
    for start in range(0, len(cases), rows):
        some = slice(start, start + rows)
        sums = np.cumsum(weights(cases[some]), axis=1)
        chosen[some] = np.argmax(sums > (uniform[some] * sums[:, -1])[:, None], axis=1)
    return chosen
