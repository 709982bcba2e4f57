r"""The most probable graphs.

The best graph on $S$ has a sink $j$, and the others form the best graph on $S \setminus j$
(Silander and Myllymäki, 2006):
$$m(S) = \max_{j \in S} m(S \setminus j) + \max_{\mathrm{Pa} \subseteq S \setminus j}
  w_j(\mathrm{Pa}).$$
The graphs other than the best differ from it first in the parents of vertex $0$, or of $1$, and
so on: $d$ sets of graphs, each a matter of which local weights are allowed, that are split in
the same way once their own best graph has been listed (Lawler, 1972). So the list is exact.
"""

import heapq
from itertools import count
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .subsets import elements, indicators, maxima_over_subsets


class _Best(NamedTuple):
    log_weight: float
    parents: tuple[int, ...]


def most_probable(
    log_weights: Float[np.ndarray, "d sets"], number: int
) -> tuple[Int[np.ndarray, "k d d"], Float[np.ndarray, " k"]]:
    """The graphs with the largest weights, at most `number`, and the logarithms of the weights."""
    size = len(log_weights)
    tickets = count()  # among equals the first found comes first
    heap: list[tuple[float, int, _Best, tuple[int, ...], tuple[frozenset[int], ...]]] = []

    def offer(fixed: tuple[int, ...], excluded: tuple[frozenset[int], ...]) -> None:
        best = _best(_restrict(log_weights, fixed, excluded))
        if best.log_weight > -np.inf:
            heapq.heappush(heap, (-best.log_weight, next(tickets), best, fixed, excluded))

    offer((), (frozenset(),) * size)
    found: list[_Best] = []
    while heap and len(found) < number:
        _, _, best, fixed, excluded = heapq.heappop(heap)
        found.append(best)
        for vertex in range(len(fixed), size):
            others = list(excluded)
            others[vertex] |= {best.parents[vertex]}
            offer(best.parents[:vertex], tuple(others))
    parents = np.array([best.parents for best in found], np.int64).reshape(-1, size)
    graphs = np.swapaxes(indicators(parents, size), 1, 2).astype(np.int8)
    return graphs, np.array([best.log_weight for best in found])


def _restrict(
    log_weights: Float[np.ndarray, "d sets"],
    fixed: tuple[int, ...],
    excluded: tuple[frozenset[int], ...],
) -> Float[np.ndarray, "d sets"]:
    """The first vertices have the parents `fixed`; no vertex has any that are `excluded`."""
    table = log_weights.copy()
    for vertex, parents in enumerate(fixed):
        table[vertex] = -np.inf
        table[vertex, parents] = log_weights[vertex, parents]
    for vertex, sets in enumerate(excluded):
        table[vertex, list(sets)] = -np.inf
    return table


def _best(log_weights: Float[np.ndarray, "d sets"]) -> _Best:
    """The best graph, by dynamic programming over the sets of its first vertices."""
    size, everything = len(log_weights), log_weights.shape[1] - 1
    within = log_weights.copy()
    maxima_over_subsets(within)
    sets = np.arange(everything + 1)
    sizes = np.bitwise_count(sets)
    value = np.full(everything + 1, -np.inf)
    value[0] = 0.0
    for level in range(1, size + 1):
        here = sets[sizes == level]
        for sink in range(size):
            those = here[here >> sink & 1 == 1]
            without = those ^ 1 << sink
            value[those] = np.maximum(value[those], value[without] + within[sink, without])
    parents = [0] * size
    rest = everything if value[-1] > -np.inf else 0
    while rest:
        sinks = elements(rest)
        sink = int(sinks[np.argmax(value[rest ^ 1 << sinks] + within[sinks, rest ^ 1 << sinks])])
        rest ^= 1 << sink
        inside = sets & rest == sets
        parents[sink] = int(np.argmax(np.where(inside, log_weights[sink], -np.inf)))
    return _Best(float(value[-1]), tuple(parents))
