"""Models against their definitions, written as loops over all assignments."""

import itertools

import networkx as nx
import numpy as np
import pytest

from natgfn.graphical import FactorGraph, bayesian_network, ising, potts

GRAPHS = {
    "chain": nx.path_graph(4),
    "torus": nx.grid_2d_graph(3, 3, periodic=True),
    "grid": nx.grid_2d_graph(2, 3),
    "tree": nx.random_labeled_tree(6, seed=1),
    "regular": nx.random_regular_graph(3, 6, seed=2),
    "letters, one of them alone": nx.Graph({"b": ["a"], "a": ["c"], "z": []}),
    "no edges": nx.empty_graph(2),
}


def rewards(graph: FactorGraph) -> list[tuple[tuple[int, ...], float]]:
    """Every assignment and its `log R`."""
    values = list(itertools.product(*map(range, graph.cards)))
    return list(zip(values, graph.log_value(np.array(values)).tolist(), strict=True))


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
def test_ising(name: str, each: bool):
    graph, rng = GRAPHS[name], np.random.default_rng(0)
    nodes, edges = list(graph.nodes), list(graph.edges)
    coupling = rng.normal(size=len(edges)) if each else 0.7
    field = rng.normal(size=len(nodes)) if each else -0.3
    model = ising(graph, coupling, field)
    assert model.cards == (2,) * len(nodes)
    assert [model.name(v) for v in range(len(nodes))] == [str(node) for node in nodes]
    for values, found in rewards(model):
        spin = {node: (-1, +1)[value] for node, value in zip(nodes, values, strict=True)}
        expected = 0.0
        for number, (a, b) in enumerate(edges):
            expected += (coupling[number] if each else coupling) * spin[a] * spin[b]
        for number, node in enumerate(nodes):
            expected += (field[number] if each else field) * spin[node]
        assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("name", ["chain", "tree", "letters, one of them alone"])
def test_potts(name: str, each: bool):
    graph, rng = GRAPHS[name], np.random.default_rng(0)
    nodes, edges = list(graph.nodes), list(graph.edges)
    coupling = rng.normal(size=len(edges)) if each else 0.7
    field = rng.normal(size=(len(nodes), 3)) if each else -0.3
    model = potts(graph, 3, coupling, field)
    for values, found in rewards(model):
        at = dict(zip(nodes, values, strict=True))
        expected = 0.0
        for number, (a, b) in enumerate(edges):
            expected += (coupling[number] if each else coupling) * (at[a] == at[b])
        for number, node in enumerate(nodes):
            expected += field[number, at[node]] if each else field * (at[node] == 0)
        assert found == pytest.approx(expected, abs=1e-12)


def test_the_torus_of_the_benchmarks():
    """`log R = 0.1 x^T A x`: every bond twice, hence a coupling of 0.2."""
    graph = nx.grid_2d_graph(10, 10, periodic=True)
    model = ising(graph, 0.2)
    assert (model.num_variables, len(model.scopes)) == (100, 200)
    adjacency = nx.to_numpy_array(graph)
    values = np.random.default_rng(0).integers(2, size=(20, 100))
    spins = 2 * values - 1
    expected = 0.1 * np.einsum("ni,ij,nj->n", spins, adjacency, spins)
    np.testing.assert_allclose(model.log_value(values), expected, atol=1e-12)


def test_no_field_no_factor():
    assert ising(GRAPHS["chain"], 1.0).scopes == ((0, 1), (1, 2), (2, 3))
    assert potts(GRAPHS["chain"], 3, 1.0).scopes == ((0, 1), (1, 2), (2, 3))
    assert ising(GRAPHS["no edges"], 1.0, np.array([0.0, 1.0])).scopes == ((1,),)


CHAIN = nx.path_graph(3)
WRONG = {
    "too few couplings": (lambda: ising(CHAIN, np.ones(3)), r"coupling .* \(2,\), has \(3,\)"),
    "too many fields": (lambda: ising(CHAIN, 1.0, np.ones(4)), r"field .* \(3,\), has \(4,\)"),
    "field of no value": (lambda: potts(CHAIN, 3, 1.0, np.ones((3, 2))), r"\(3, 3\), has \(3, 2\)"),
    "NaN": (lambda: ising(CHAIN, float("nan")), "coupling must be finite"),
    "infinite": (lambda: potts(CHAIN, 2, 1.0, float("inf")), "field must be finite"),
    "no states": (lambda: potts(CHAIN, 0, 1.0), "at least one state, got 0"),
    "directed": (lambda: ising(nx.DiGraph([(0, 1)]), 1.0), "undirected .* got a DiGraph"),
    "multigraph": (lambda: ising(nx.MultiGraph([(0, 1)]), 1.0), "got a MultiGraph"),
    "loop": (lambda: ising(nx.Graph([(0, 0)]), 1.0), "names a variable twice"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_pairwise_model(name: str):
    make, words = WRONG[name]
    with pytest.raises(ValueError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


def test_bayesian_network():
    rng = np.random.default_rng(0)
    cards, parents = (2, 3, 2, 4), ((), (0,), (3, 1), (0,))
    tables = [
        rng.dirichlet(np.ones(cards[v]), size=tuple(cards[p] for p in before))
        for v, before in enumerate(parents)
    ]
    tables[1][0] = [0, 0.25, 0.75]
    model = bayesian_network(cards, parents, tables, "abcd")
    assert model.names == ("a", "b", "c", "d")
    total = 0.0
    for (a, b, c, d), found in rewards(model):
        expected = tables[0][a] * tables[1][a, b] * tables[2][d, b, c] * tables[3][a, d]
        assert np.exp(found) == pytest.approx(expected, rel=1e-12)
        total += np.exp(found)
    assert total == pytest.approx(1, rel=1e-12)


HALF = np.full((2,), 0.5)
PAIR = np.full((2, 2), 0.5)
NOT_NETWORKS = {
    "rows": (((), (0,)), (HALF, np.array([[0.5, 0.5], [0.5, 0.4]])), "variable 1 sums to 0.9:"),
    "columns": (((), (0,)), (HALF, np.array([[0.2, 0.5], [0.8, 0.5]])), "sums to 0.7:"),
    "negative": (((), ()), (HALF, np.array([1.5, -0.5])), "variable 1 must have no negative"),
    "NaN": (((), ()), (HALF, np.array([np.nan, 1])), "no negative entry or NaN"),
    "infinite": (((), ()), (HALF, np.array([np.inf, 1])), "sums to inf"),
    "cycle": (((1,), (0,)), (PAIR, PAIR), "cycle, got"),
    "its own parent": (((), (1,)), (HALF, PAIR), "cycle, got 1"),
    "axes": (((), (0,)), (HALF, HALF), "variable 1 has 1: expected 2 axes"),
    "no axes": (((), ()), (HALF, np.array(1.0)), "variable 1 has 0: expected 1 axes"),
    "shape": (((), (0,)), (HALF, np.full((3, 2), 0.5)), r"must be \(2, 2\), is \(3, 2\)"),
    "one table": (((), ()), (HALF,), "2 variables, 2 lists of parents and 1 tables"),
    "no such parent": (((), (7,)), (HALF, PAIR), r"the factor of \(7, 1\)"),
}


@pytest.mark.parametrize("name", NOT_NETWORKS)
def test_what_is_no_bayesian_network(name: str):
    parents, tables, words = NOT_NETWORKS[name]
    with pytest.raises(ValueError, match=words) as error:
        bayesian_network((2, 2), parents, tables)
    assert "\n" not in str(error.value)


def test_published_tables_are_rounded():
    bayesian_network((3,), ((),), (np.full(3, 0.3333333),))
    with pytest.raises(ValueError, match=r"sums to 0\.9999"):
        bayesian_network((3,), ((),), (np.full(3, 0.3333),))
