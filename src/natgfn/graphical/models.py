"""Models as factor graphs: Ising, Potts and Bayesian networks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from .graph import FactorGraph

if TYPE_CHECKING:
    import networkx


def ising(
    graph: "networkx.Graph",
    coupling: float | Float[np.ndarray, " edges"],
    field: float | Float[np.ndarray, " nodes"] = 0.0,
) -> FactorGraph:
    r"""$\log R(x) = \sum_{ij} J_{ij} s_i s_j + \sum_i h_i s_i$: value 0 is spin -1, 1 is spin +1.

    Variables and factors are in the order of `graph.nodes` and `graph.edges`; networkx has grids
    with open and periodic borders, chains, trees and regular graphs.

    Args:
        graph: undirected; each of its edges is a factor once.
        coupling: $J$, of every edge or of each.
        field: $h$, of every node or of each.
    """
    spins = np.array([-1.0, 1.0])
    fields = _each("the field", field, (len(graph),))
    return _pairwise(graph, np.outer(spins, spins), coupling, fields[:, None] * spins)


def potts(
    graph: "networkx.Graph",
    states: int,
    coupling: float | Float[np.ndarray, " edges"],
    field: float | Float[np.ndarray, "nodes states"] = 0.0,
) -> FactorGraph:
    r"""$\log R(x) = \sum_{ij} J_{ij} 1\{x_i = x_j\} + \sum_i h_i(x_i)$, in the order of `ising`.

    Args:
        graph: undirected; each of its edges is a factor once.
        states: the number of values of each variable.
        coupling: $J$, of every edge or of each.
        field: $h$, of each node and value; a number is that of value 0, and 0 of all others.
    """
    if states < 1:
        raise ValueError(f"a variable must have at least one state, got {states}")
    fields = _each("the field", field, (len(graph), states))
    if np.ndim(field) == 0:
        fields = np.where(np.arange(states) == 0, fields, 0.0)
    return _pairwise(graph, np.eye(states), coupling, fields)


def bayesian_network(
    cards: Sequence[int],
    parents: Sequence[Sequence[int]],
    tables: Sequence[Float[np.ndarray, "..."]],
    names: Sequence[str] = (),
) -> FactorGraph:
    r"""$R(x) = \prod_v p(x_v \mid x_{\mathrm{pa}(v)})$, which sums to one.

    Args:
        cards: the number of values of each variable.
        parents: of each variable.
        tables: of each variable, probabilities: an axis a parent, in their order, then the
            variable, over which they sum to one, to six digits as published tables do.
        names: of the variables.
    """
    if not len(cards) == len(parents) == len(tables):
        found = f"{len(cards)} variables, {len(parents)} lists of parents and {len(tables)} tables"
        raise ValueError(f"expected parents and a table for each variable, got {found}")
    import networkx as nx  # takes long to import

    edges = nx.DiGraph((p, v) for v, before in enumerate(parents) for p in before)
    if not nx.is_directed_acyclic_graph(edges):
        cycle = " -> ".join(str(edge[0]) for edge in nx.find_cycle(edges))
        raise ValueError(f"parents must not form a cycle, got {cycle}")
    factors = []
    for variable, (before, table) in enumerate(zip(parents, tables, strict=True)):
        probabilities = np.asarray(table, np.float64)
        if probabilities.ndim != len(before) + 1:
            wanted = f"{len(before) + 1} axes, one a parent and its own"
            found = f"the table of variable {variable} has {probabilities.ndim}"
            raise ValueError(f"{found}: expected {wanted}")
        if not np.all(probabilities >= 0):
            raise ValueError(f"the table of variable {variable} must have no negative entry or NaN")
        totals = np.ravel(probabilities.sum(axis=-1))
        wrong = totals[~(np.abs(totals - 1) < 1e-6)]
        if wrong.size:
            row = f"a row of the table of variable {variable}"
            raise ValueError(f"{row} sums to {wrong[0]:.9g}: expected 1 over its last axis")
        with np.errstate(divide="ignore"):
            factors.append(((*before, variable), np.log(probabilities)))
    return FactorGraph.of(cards, factors, names)


def _each(
    what: str, values: float | Float[np.ndarray, "..."], shape: tuple[int, ...]
) -> Float[np.ndarray, "..."]:
    """A number for each, or those given."""
    array = np.asarray(values, np.float64)
    if array.shape not in ((), shape):
        raise ValueError(f"{what} must be a number or have shape {shape}, has {array.shape}")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{what} must be finite")
    return np.broadcast_to(array, shape)


def _pairwise(
    graph: "networkx.Graph",
    log_pair: Float[np.ndarray, "states states"],
    coupling: float | Float[np.ndarray, " edges"],
    fields: Float[np.ndarray, "nodes states"],
) -> FactorGraph:
    """A factor for each edge, and for each node that has a field."""
    if graph.is_directed() or graph.is_multigraph():
        raise ValueError(f"expected an undirected networkx.Graph, got a {type(graph).__name__}")
    place = {node: number for number, node in enumerate(graph.nodes)}
    couplings = _each("the coupling", coupling, (graph.number_of_edges(),))
    factors = [
        ((place[a], place[b]), strength * log_pair)
        for (a, b), strength in zip(graph.edges, couplings, strict=True)
    ]
    factors += [((node,), field) for node, field in enumerate(fields) if np.any(field)]
    cards = [len(log_pair)] * len(graph)
    return FactorGraph.of(cards, factors, [str(node) for node in graph.nodes])
