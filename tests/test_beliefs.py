"""Belief propagation: exact on trees, and with cycles as plain Python does it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graphical_oracles import ising_grid, listed, random_graph
from oracles import float64
from scipy.special import logsumexp

from natgfn.errors import NatgfnError
from natgfn.graphical import FactorGraph, Wiring, check_converged, loopy, propagate


def random_tree(seed: int, zeros: float) -> FactorGraph:
    """Factors of one to four variables, joined without a cycle; a constant; a variable apart."""
    rng = np.random.default_rng(seed)
    cards, scopes = [int(rng.integers(2, 4))], []
    while len(cards) < 7:
        new = int(rng.integers(0, 4))
        scope = [int(rng.integers(len(cards))), *range(len(cards), len(cards) + new)]
        cards += rng.integers(1, 4, new).tolist()
        scopes.append(tuple(rng.permutation(scope).tolist()))
    sure, factors = [int(rng.integers(card)) for card in cards], [((), np.array(0.7))]
    for scope in scopes:
        table = 2 * rng.normal(size=[cards[v] for v in scope])
        forbidden = rng.random(table.shape) < zeros
        forbidden[tuple(sure[v] for v in scope)] = False
        factors.append((scope, np.where(forbidden, -np.inf, table)))
    return FactorGraph.of([*cards, 3], factors)


def marginal(graph, law, scope):
    """Of the law of all assignments, flattened."""
    rest = [v for v in range(graph.num_variables) if v not in scope]
    ordered = np.reshape(law, graph.cards).transpose(*scope, *rest)
    return ordered.reshape(*graph.shape(scope), -1).sum(axis=-1).ravel()


def single(graph, beliefs, variable):
    return np.exp(beliefs.log_singles[variable, : graph.cards[variable]])


def factor_beliefs(graph, beliefs):
    """Scopes and probabilities, an axis a variable."""
    return list(FactorGraph(graph.cards, graph.scopes, beliefs.log_factors).factors())


class Plain:
    """The same schedule by its definition: dictionaries of messages, probabilities, no tricks."""

    def __init__(self, graph: FactorGraph):
        self.graph = graph
        self.factors = [(scope, np.exp(table)) for scope, table in graph.factors()]
        self.edges = [(f, v) for f, (scope, _) in enumerate(self.factors) for v in scope]
        self.messages = {(f, v): np.ones(graph.cards[v]) / graph.cards[v] for f, v in self.edges}

    def answer(self, f, v):
        others = [g for g, u in self.edges if u == v and g != f]
        product = np.prod([np.ones(self.graph.cards[v]), *(self.messages[g, v] for g in others)], 0)
        return product / product.sum()

    def weights(self, f, leave_out=None):
        scope, weights = self.factors[f]
        for axis, v in enumerate(scope):
            if v != leave_out:
                shape = [-1 if other == axis else 1 for other in range(len(scope))]
                weights = weights * self.answer(f, v).reshape(shape)
        return weights

    def iterate(self, damping):
        new = {}
        for f, v in self.edges:
            axes = tuple(i for i, u in enumerate(self.factors[f][0]) if u != v)
            told = self.weights(f, leave_out=v).sum(axis=axes)
            new[f, v] = told / told.sum()
        residual = max(np.abs(new[e] - self.messages[e]).max() for e in self.edges)
        for edge in self.edges:
            mixed = self.messages[edge] ** damping * new[edge] ** (1 - damping)
            self.messages[edge] = mixed / mixed.sum()
        return residual

    def at(self, v):
        messages = [self.messages[f, u] for f, u in self.edges if u == v]
        return np.prod([np.ones(self.graph.cards[v]), *messages], axis=0)

    def log_z(self):
        """Bethe's, with a normaliser for every factor, variable and edge."""
        of_edges = [self.messages[f, v] @ self.answer(f, v) for f, v in self.edges]
        of_factors = [self.weights(f).sum() for f in range(len(self.factors))]
        of_variables = [self.at(v).sum() for v in range(self.graph.num_variables)]
        return np.log([*of_factors, *of_variables]).sum() - np.log(of_edges).sum()


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]
)
def test_exact_on_trees(seed):
    graph = random_tree(seed, zeros=0.25 * (seed % 2))
    known = listed(graph)
    for damping in (0.0, 0.25):
        beliefs = loopy(graph, damping=damping, tolerance=1e-13)
        assert beliefs.converged
        assert beliefs.log_z == pytest.approx(known.log_z, abs=1e-10)
        for v in range(graph.num_variables):
            wanted = marginal(graph, known.law, (v,))
            np.testing.assert_allclose(single(graph, beliefs, v), wanted, atol=1e-11)
        for scope, log_belief in factor_beliefs(graph, beliefs):
            wanted = marginal(graph, known.law, scope)
            np.testing.assert_allclose(np.exp(log_belief).ravel(), wanted, atol=1e-11)


@pytest.mark.parametrize("seed", [1, 3])
def test_a_zero_factor_leaves_exactly_no_belief(seed):
    graph = random_tree(seed, zeros=0.7)
    known, beliefs = listed(graph), loopy(graph)
    never = [marginal(graph, known.law, (v,)) == 0 for v in range(graph.num_variables)]
    assert any(some.any() for some in never)
    for v, some in enumerate(never):
        np.testing.assert_array_equal(single(graph, beliefs, v) == 0, some)


def test_values_that_a_variable_does_not_have():
    beliefs = loopy(random_tree(0, zeros=0.0))
    cards = np.array(random_tree(0, zeros=0.0).cards)
    there = np.arange(beliefs.log_singles.shape[1]) < cards[:, None]
    assert not there.all()
    np.testing.assert_array_equal(np.isfinite(beliefs.log_singles), there)
    np.testing.assert_allclose(logsumexp(beliefs.log_singles, axis=1), 0, atol=1e-14)


@pytest.mark.parametrize("zeros", [0.0, 0.2])
@pytest.mark.parametrize(
    "seed", [2, 8, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (4, 11))]
)
def test_the_schedule_is_that_of_plain_python(seed, zeros):
    """On graphs with cycles, before convergence; also where factors are zero."""
    graph = random_graph(seed, zeros=zeros)
    plain = Plain(graph)
    for iterations in range(1, 6):
        residual = plain.iterate(0.3)
        beliefs = loopy(graph, damping=0.3, tolerance=0.0, max_iterations=iterations)
        assert int(beliefs.iterations) == iterations or beliefs.residual == 0
        for v in range(graph.num_variables):
            wanted = plain.at(v) / plain.at(v).sum()
            np.testing.assert_allclose(single(graph, beliefs, v), wanted, atol=1e-13)
        for f, (_, log_belief) in enumerate(factor_beliefs(graph, beliefs)):
            wanted = plain.weights(f) / plain.weights(f).sum()
            np.testing.assert_allclose(np.exp(log_belief), wanted, atol=1e-13)
        assert beliefs.log_z == pytest.approx(plain.log_z(), abs=1e-11)
        if not zeros:
            assert beliefs.residual == pytest.approx(residual, abs=1e-13)


def test_factors_of_many_variables():
    """Parted in the middle, with other cardinalities on each side."""
    rng = np.random.default_rng(0)
    cards = (2, 3, 2, 2, 4, 3, 2)
    scopes = ((6, 0, 4, 2, 3, 5, 1), (1, 0), (5, 6, 2, 1, 0), (4,), (3, 2, 1))
    graph = FactorGraph.of(
        cards, [(scope, rng.normal(size=[cards[v] for v in scope])) for scope in scopes]
    )
    plain = Plain(graph)
    for _ in range(4):
        residual = plain.iterate(0.25)
    beliefs = loopy(graph, tolerance=0.0, max_iterations=4)
    assert beliefs.residual == pytest.approx(residual, abs=1e-13)
    assert beliefs.log_z == pytest.approx(plain.log_z(), abs=1e-11)
    for f, (_, log_belief) in enumerate(factor_beliefs(graph, beliefs)):
        wanted = plain.weights(f) / plain.weights(f).sum()
        np.testing.assert_allclose(np.exp(log_belief), wanted, atol=1e-13)


def test_bethe_on_a_cycle():
    """The fixed point of a cycle is the Perron root of its transfer matrices, not their trace."""
    rng = np.random.default_rng(1)
    cards = (2, 3, 4)
    tables = [rng.normal(size=(cards[v], cards[(v + 1) % 3])) for v in range(3)]
    graph = FactorGraph.of(cards, [((v, (v + 1) % 3), tables[v]) for v in range(3)])
    around = np.linalg.multi_dot([np.exp(table) for table in tables])
    beliefs = loopy(graph)
    check_converged(beliefs)
    assert listed(graph).log_z == pytest.approx(np.log(np.trace(around)))
    assert beliefs.log_z == pytest.approx(np.log(np.abs(np.linalg.eigvals(around)).max()))


def test_the_fixed_point_is_bethes():
    """Beliefs agree where they meet, and log Z is minus their free energy."""
    graph = ising_grid(3, 3, seed=3, coupling=0.5)
    beliefs = loopy(graph, tolerance=1e-13)
    check_converged(beliefs)
    degree = np.bincount([v for scope in graph.scopes for v in scope])
    energy = 0.0
    pairs = zip(graph.factors(), factor_beliefs(graph, beliefs), strict=True)
    for (scope, log_factor), (_, log_belief) in pairs:
        belief = np.exp(log_belief)
        energy += np.sum(belief * (log_factor - log_belief))
        for axis, v in enumerate(scope):
            others = tuple(i for i in range(len(scope)) if i != axis)
            np.testing.assert_allclose(belief.sum(axis=others), single(graph, beliefs, v))
    for v in range(graph.num_variables):
        belief = single(graph, beliefs, v)
        energy += (degree[v] - 1) * np.sum(belief * np.log(belief))
    assert beliefs.log_z == pytest.approx(energy)
    assert abs(beliefs.log_z - listed(graph).log_z) < 0.05


def test_what_does_not_converge_says_so():
    """Strong couplings of both signs on a small grid."""
    beliefs = loopy(ising_grid(3, 3, seed=2, coupling=3.0, field=0.5), max_iterations=300)
    assert not beliefs.converged
    assert int(beliefs.iterations) == 300
    assert beliefs.residual > 0.01
    with pytest.raises(NatgfnError, match=r"^[^\n]*residual [0-9.]+ after 300 iterations[^\n]*$"):
        check_converged(beliefs)


def test_converged_means_that_the_residual_is_within_the_tolerance():
    graph = ising_grid(3, 3)
    residuals = [float(loopy(graph, max_iterations=n, tolerance=0.0).residual) for n in (1, 5, 20)]
    assert residuals[0] > residuals[1] > residuals[2] > 0
    for residual, iterations in zip(residuals, (1, 5, 20), strict=True):
        at = loopy(graph, max_iterations=iterations, tolerance=residual)
        assert at.converged
        assert float(at.residual) == residual
        below = loopy(graph, max_iterations=iterations, tolerance=residual * (1 - 1e-9))
        assert not below.converged
    for tolerance in (1e-2, 1e-6, 1e-10):
        beliefs = loopy(graph, tolerance=tolerance)
        before = loopy(graph, tolerance=tolerance, max_iterations=int(beliefs.iterations) - 1)
        assert beliefs.converged
        assert beliefs.residual <= tolerance < before.residual
        assert not before.converged


def contradictions() -> dict[str, FactorGraph]:
    is_zero, is_one = np.array([0.0, -np.inf]), np.array([-np.inf, 0.0])
    equal = np.where(np.eye(2), 0.0, -np.inf)
    chain = [((v, v + 1), equal) for v in range(4)]
    free = ((5, 6), np.random.default_rng(0).normal(size=(2, 3)))
    cards = [2, 2, 2, 2, 2, 2, 3]
    return {
        "at a variable": FactorGraph.of(cards, [((0,), is_zero), ((0,), is_one), free]),
        "along a chain": FactorGraph.of(cards, [((0,), is_zero), *chain, ((4,), is_one), free]),
        "in a factor": FactorGraph.of(cards, [((0, 1), np.full((2, 2), -np.inf)), free]),
        "in a constant": FactorGraph.of(cards, [((), np.array(-np.inf)), free]),
    }


@pytest.mark.parametrize("where", contradictions())
@pytest.mark.parametrize("damping", [0.0, 0.5])
def test_a_contradiction_is_reported(where, damping):
    beliefs = loopy(contradictions()[where], damping=damping)
    assert not any(np.isnan(x).any() for x in beliefs)
    assert beliefs.log_z == -np.inf
    assert beliefs.residual == np.inf
    assert not beliefs.converged
    with pytest.raises(NatgfnError, match="contradiction"):
        check_converged(beliefs)


@float64
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_table_that_went_wrong_has_not_converged(wrong):
    graph = ising_grid(3, 3)
    wiring = Wiring.of(graph.cards, graph.scopes)
    table = jnp.asarray(graph.log_table)
    run = jax.jit(propagate)
    start = jnp.full(wiring.num_messages, -0.5)
    broken = run(wiring, table.at[-1].set(wrong), start=start)
    assert not broken.converged
    with pytest.raises(NatgfnError, match="not converged"):
        check_converged(broken)
    healed = run(wiring, table, start=broken.messages)
    assert healed.converged
    assert healed.log_z == pytest.approx(float(loopy(graph).log_z), abs=1e-6)


def test_a_warm_start_converges_at_once():
    for graph in (ising_grid(4, 4, seed=1), random_graph(8, zeros=0.2)):
        cold = loopy(graph)
        again = loopy(graph, start=cold.messages)
        assert int(cold.iterations) > 5
        assert int(again.iterations) == 1
        assert again.converged
        np.testing.assert_allclose(np.exp(again.log_singles), np.exp(cold.log_singles), atol=1e-9)


def test_a_warm_start_is_nearer_after_a_small_change():
    graph = ising_grid(4, 4, seed=1)
    rng = np.random.default_rng(0)
    table = graph.log_table + 1e-4 * rng.normal(size=graph.log_table.size)
    near = FactorGraph(graph.cards, graph.scopes, table)
    cold = loopy(near)
    warm = loopy(near, start=loopy(graph).messages)
    assert warm.iterations < 0.8 * cold.iterations
    np.testing.assert_allclose(warm.log_singles, cold.log_singles, atol=1e-7)


def test_a_start_forgets_what_other_factors_ruled_out():
    equal = np.where(np.eye(3), 0.0, -np.inf)
    soft = np.random.default_rng(0).normal(size=(3, 3))
    edges = [((0, 1), equal), ((1, 2), equal), ((2, 0), soft)]
    first, second = (
        FactorGraph.of([3] * 3, [*edges, ((0,), np.where(np.arange(3) == value, 0.0, -np.inf))])
        for value in (0, 2)
    )
    beliefs = loopy(second, start=loopy(first).messages)
    check_converged(beliefs)
    assert beliefs.log_z == pytest.approx(listed(second).log_z)
    assert beliefs.log_singles[1, 2] == pytest.approx(0)


@float64
def test_one_program_for_all_tables():
    graph = ising_grid(4, 4)
    wiring = Wiring.of(graph.cards, graph.scopes)
    traced = []

    @jax.jit
    def run(log_table, start):
        traced.append(1)
        return propagate(wiring, log_table, start=start, tolerance=1e-9)

    start = jnp.zeros(wiring.num_messages)
    for seed in range(3):
        other = ising_grid(4, 4, seed=seed)
        found = run(jnp.asarray(other.log_table), start)
        start, wanted = found.messages, loopy(other)
        assert found.converged
        np.testing.assert_allclose(found.log_singles, wanted.log_singles, atol=1e-7)
    assert len(traced) == 1


def test_single_precision_reaches_the_default_tolerance():
    rng = np.random.default_rng(0)
    scopes = [tuple(rng.choice(100, 5, replace=False).tolist()) for _ in range(100)]
    graph = FactorGraph.of([2] * 100, [(s, 0.5 * rng.normal(size=(2,) * 5)) for s in scopes])
    table = jnp.asarray(graph.log_table, jnp.float32)
    beliefs, wanted = jax.jit(propagate)(Wiring.of(graph.cards, scopes), table), loopy(graph)
    assert beliefs.converged
    assert beliefs.log_singles.dtype == jnp.float32
    np.testing.assert_allclose(np.exp(beliefs.log_singles), np.exp(wanted.log_singles), atol=1e-4)
    assert beliefs.log_z == pytest.approx(float(wanted.log_z), rel=1e-5)


def test_no_factors():
    beliefs = loopy(FactorGraph.of((3, 2), []))
    check_converged(beliefs)
    assert beliefs.log_z == pytest.approx(np.log(6))
    np.testing.assert_allclose(np.exp(beliefs.log_singles), [[1 / 3] * 3, [1 / 2, 1 / 2, 0]])


@pytest.mark.parametrize(
    ("argument", "value"),
    [("damping", 1.0), ("damping", -0.1), ("tolerance", np.nan), ("max_iterations", 0)],
)
def test_bad_arguments(argument, value):
    with pytest.raises(ValueError, match=f"{argument} must be .*, got {value}"):
        loopy(ising_grid(2, 2), **{argument: value})


def test_tables_and_starts_of_another_graph():
    wiring = Wiring.of((2, 2), ((0, 1),))
    with pytest.raises(ValueError, match="need 4 entries, got 3"):
        propagate(wiring, jnp.zeros(3))
    with pytest.raises(ValueError, match="needs 4 messages"):
        propagate(wiring, jnp.zeros(4), start=jnp.zeros(5))
