"""Exact inference on factor graphs, against a list of every assignment, and another library."""

import jax
import networkx as nx
import numpy as np
import pytest
from graphical_oracles import gum, ising_grid, listed, random_graph

from natgfn.graphical import (
    FactorGraph,
    TooWide,
    assignment_order,
    infer,
    junction_tree,
    log_partition,
    separators,
    width,
)

ORDERS = ("auto", "min_fill", "min_degree", "numbered", "random")


def an_order(graph: FactorGraph, how: str, seed: int):
    if how != "random":
        return how
    return tuple(np.random.default_rng(seed).permutation(graph.num_variables).tolist())


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))]
)
def test_everything_against_a_list_of_all_assignments(seed):
    graph = random_graph(seed)
    known = listed(graph)
    for how in ORDERS:
        found = infer(graph, an_order(graph, how, seed))
        assert found.log_z == pytest.approx(known.log_z, abs=1e-10)
        assert log_partition(graph, an_order(graph, how, seed)) == pytest.approx(known.log_z)
        for variable, marginal in enumerate(found.marginals):
            wanted = np.bincount(known.assignments[:, variable], known.law, graph.cards[variable])
            np.testing.assert_allclose(marginal, wanted, atol=1e-12)
        assert graph.log_value(found.best) == pytest.approx(known.log_values.max())
        assert found.best_log_value == pytest.approx(known.log_values.max())


@pytest.mark.parametrize("seed", [3, 5, 8])
def test_cliques_and_conditionals(seed):
    graph = random_graph(seed)
    known, found = listed(graph), infer(graph)
    contexts = found.tree.contexts
    for step, (variable, seen) in enumerate(zip(contexts.order, contexts.seen, strict=True)):
        axes = (*seen, variable)
        wanted = np.zeros(graph.shape(axes))
        np.add.at(wanted, tuple(known.assignments[:, list(axes)].T), known.law)
        np.testing.assert_allclose(found.clique(step), wanted, atol=1e-12)
    np.testing.assert_allclose(found.occupancy[found.tree.roots], 1.0)


def test_samples_follow_the_law():
    graph = random_graph(7)
    known, found = listed(graph), infer(graph)
    drawn = found.sample(20_000, key=jax.random.key(0))
    assert np.isfinite(graph.log_value(drawn)).all()
    place = {tuple(x): i for i, x in enumerate(known.assignments)}
    counts = np.bincount([place[tuple(x)] for x in drawn], minlength=len(place))
    error = np.abs(counts / len(drawn) - known.law)
    assert np.all(error < 5 * np.sqrt(known.law / len(drawn)) + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_evidence(seed):
    graph = random_graph(seed + 20, zeros=0.0)
    variable = graph.num_variables - 1
    known, found = listed(graph), infer(graph, evidence={variable: 0})
    kept = known.assignments[:, variable] == 0
    assert found.log_z == pytest.approx(known.log_z + np.log(known.law[kept].sum()))
    assert found.marginals[variable][0] == pytest.approx(1.0)
    law = known.law * kept / known.law[kept].sum()
    wanted = np.bincount(known.assignments[:, 0], law, graph.cards[0])
    np.testing.assert_allclose(found.marginals[0], wanted, atol=1e-12)


def test_separators_hold_what_later_variables_need():
    """Given its separator, a variable does not depend on the other earlier ones."""
    graph = random_graph(11, zeros=0.0)
    known = listed(graph)
    order = assignment_order(graph)
    for step, (variable, seen) in enumerate(zip(order, separators(graph, order), strict=True)):
        before = order[:step]

        def conditional(given, variable=variable):
            joint = np.zeros(graph.shape((*given, variable)))
            np.add.at(joint, tuple(known.assignments[:, [*given, variable]].T), known.law)
            share = joint / joint.sum(axis=-1, keepdims=True)
            return share[tuple(known.assignments[:, [*given, variable]].T)]

        np.testing.assert_allclose(conditional(before), conditional(seen), atol=1e-10)


def test_widths_of_graphs_whose_treewidth_is_known():
    def of(graph: nx.Graph) -> FactorGraph:
        number = {node: i for i, node in enumerate(graph)}
        return FactorGraph.of(
            [2] * len(graph), [((number[a], number[b]), np.zeros((2, 2))) for a, b in graph.edges]
        )

    cases = {1: nx.random_labeled_tree(40, seed=0), 2: nx.cycle_graph(9), 5: nx.complete_graph(6)}
    for known, graph in cases.items():
        for how in ("auto", "min_fill", "min_degree"):
            model = of(graph)
            assert width(separators(model, assignment_order(model, how))) == known
    grid = ising_grid(6, 6)
    assert width(separators(grid, assignment_order(grid, "numbered"))) == 6


def test_prototype_grids_have_the_log_z_of_the_transfer_matrix():
    """`structured.md`: 60.7616 and 96.7530, by messages over rows of spins."""
    assert infer(ising_grid(8, 8), "numbered").log_z == pytest.approx(60.7616, abs=5e-5)
    assert infer(ising_grid(10, 10), "numbered").log_z == pytest.approx(96.7530, abs=5e-5)


@pytest.mark.slow
def test_torus_of_the_benchmarks():
    graph = nx.grid_2d_graph(10, 10, periodic=True)
    number = {node: i for i, node in enumerate(graph)}
    bond = 0.2 * np.outer([-1.0, 1.0], [-1.0, 1.0])
    torus = FactorGraph.of([2] * 100, [((number[a], number[b]), bond) for a, b in graph.edges])
    assert log_partition(torus) == pytest.approx(73.45310, abs=5e-6)


def test_marginals_of_a_network_of_forty_variables_equal_another_librarys():
    gum.initRandom(3)
    network = gum.BNGenerator().generate(40, 55, 3)
    cards = [network.variable(i).domainSize() for i in range(40)]
    factors = []
    for node in range(40):
        table = network.cpt(node)
        scope = [network.idFromName(name) for name in reversed(table.names)]
        with np.errstate(divide="ignore"):
            factors.append((scope, np.log(table.toarray())))
    graph = FactorGraph.of(cards, factors)
    evidence = {3: 0, 17: 1, 30: 0}
    found = infer(graph, evidence=evidence)
    oracle = gum.LazyPropagation(network)
    oracle.setEvidence(evidence)
    oracle.makeInference()
    assert found.log_z == pytest.approx(np.log(oracle.evidenceProbability()), abs=1e-9)
    for variable in range(40):
        wanted = oracle.posterior(variable).toarray()
        np.testing.assert_allclose(found.marginals[variable], wanted, atol=1e-9)


def test_a_width_that_does_not_fit_is_one_line_before_anything_is_allocated():
    grid = ising_grid(26, 26)
    for attempt in (infer, junction_tree_of, log_partition):
        with pytest.raises(TooWide, match=r"width 2\d in this order: its tables need") as error:
            attempt(grid)
        assert "\n" not in str(error.value)


def junction_tree_of(graph: FactorGraph):
    return junction_tree(graph, assignment_order(graph, "numbered"), most=2**23)


def test_bad_models_are_one_line():
    flat = np.zeros(2)
    with pytest.raises(ValueError, match="names a variable twice"):
        FactorGraph.of([2, 2], [((0, 0), np.zeros((2, 2)))])
    with pytest.raises(ValueError, match=r"must be \(3,\), is \(2,\)"):
        FactorGraph.of([3], [((0,), flat)])
    with pytest.raises(ValueError, match="below infinity"):
        FactorGraph.of([2], [((0,), np.array([0.0, np.nan]))])
    with pytest.raises(ValueError, match="at least one value"):
        FactorGraph.of([0], [])
    with pytest.raises(ValueError, match="no assignment of the variables is possible"):
        infer(FactorGraph.of([2], [((0,), np.full(2, -np.inf))]))
    with pytest.raises(ValueError, match="takes from 0 to 1, got 2"):
        infer(FactorGraph.of([2], [((0,), flat)]), evidence={0: 2})
    with pytest.raises(ValueError, match="name each of 2 variables once"):
        assignment_order(FactorGraph.of([2, 2], []), (0, 0))
    with pytest.raises(ValueError, match="order must be one of"):
        assignment_order(FactorGraph.of([2], []), "best")
