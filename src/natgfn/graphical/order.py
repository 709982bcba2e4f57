"""Orders in which variables are assigned: an elimination order of the graph, reversed."""

from collections.abc import Sequence
from itertools import combinations
from math import prod

from .graph import FactorGraph

HEURISTICS = ("min_fill", "min_degree")
"""Which variable to eliminate next: one that adds the fewest edges, or with fewest neighbours."""


def assignment_order(graph: FactorGraph, how: str | Sequence[int] = "auto") -> tuple[int, ...]:
    """The variables in the order in which they are assigned.

    Args:
        graph: the model.
        how: one of `HEURISTICS`; `numbered` for the order of the numbers; `auto` for whichever of
            these needs the smallest tables; or the order itself.
    """
    everything = tuple(range(graph.num_variables))
    if not isinstance(how, str):
        if sorted(how) != list(everything):
            raise ValueError(f"an order must name each of {len(everything)} variables once")
        return tuple(int(v) for v in how)
    if how == "numbered":
        return everything
    if how == "auto":
        tried = [assignment_order(graph, name) for name in (*HEURISTICS, "numbered")]
        return min(tried, key=lambda order: table_size(graph, separators(graph, order), order))
    if how not in HEURISTICS:
        wanted = ", ".join((*HEURISTICS, "numbered", "auto"))
        raise ValueError(f"order must be one of {wanted}, or a sequence of variables, got {how!r}")
    return _greedy(graph, fill=how == "min_fill")[::-1]


def separators(graph: FactorGraph, order: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """$S_t$ of each variable in the order: its earlier neighbours once the graph is chordal.

    Each is sorted by the time of assignment.
    """
    place = {variable: step for step, variable in enumerate(order)}
    earlier: list[set[int]] = [set() for _ in order]
    for a, b in graph.neighbours().edges:
        earlier[max(place[a], place[b])].add(min(place[a], place[b]))
    for step in reversed(range(len(order))):
        if earlier[step]:
            last = max(earlier[step])
            earlier[last] |= earlier[step] - {last}
    return tuple(tuple(order[s] for s in sorted(steps)) for steps in earlier)


def table_size(graph: FactorGraph, seen: Sequence[Sequence[int]], order: Sequence[int]) -> int:
    """Entries of the tables over every variable and those that it sees."""
    families = zip(order, seen, strict=True)
    return sum(prod(graph.shape((variable, *others))) for variable, others in families)


def width(seen: Sequence[Sequence[int]]) -> int:
    """The largest number of variables that one variable sees."""
    return max(map(len, seen), default=0)


def _greedy(graph: FactorGraph, fill: bool) -> tuple[int, ...]:
    """An elimination order by a heuristic; the lowest number breaks ties."""
    around = {v: set(others) for v, others in graph.neighbours().adjacency()}

    def cost(variable: int) -> int:
        if not fill:
            return len(around[variable])
        return sum(b not in around[a] for a, b in combinations(around[variable], 2))

    costs = {variable: cost(variable) for variable in around}
    order = []
    while costs:
        variable = min(costs, key=lambda v: (costs[v], v))
        others = around.pop(variable)
        del costs[variable]
        order.append(variable)
        for other in others:
            around[other] |= others - {other}
            around[other].discard(variable)
        changed = others.union(*(around[other] for other in others)) if fill else others
        costs |= {other: cost(other) for other in changed}
    return tuple(order)
