"""Closed-form solves against exact rational elimination and dense linear algebra."""

from dataclasses import replace
from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jax.flatten_util import ravel_pytree
from oracles import Plainly, explore, flatten, float64, make_flow, on_batch, random_tables

from natgfn.envs import DeceptiveGrid
from natgfn.fisher import Blocks, Fisher, Occupancy, ScoreFisher, residual_gram
from natgfn.objectives import Huber, TrajectoryBalance, evaluate, residual_rows
from natgfn.occupancy import Exact, Sampled, SampledScores
from natgfn.policies import Flow, Network, Tabular, Uniform
from natgfn.sampling import OnPolicy, UniformMixture, Weighting, rollout
from natgfn.solvers import (
    Block,
    BlockPseudoinverse,
    Dense,
    proximal_step,
)
from natgfn.solvers.block import pseudo_solve, solve_covariance, solve_scores
from natgfn.statespace import enumerate_states

STATES, ACTIONS = 5, 4

# Probabilities that are multiples of 1/64 sum to one exactly, zeros (masked actions) included:
# so the system that is solved is the one that rational arithmetic solves.
cuts = hnp.arrays(int, (STATES, ACTIONS - 1), elements=st.integers(0, 64))
visits = hnp.arrays(float, STATES, elements=st.sampled_from([0.0, 2.0**-20, 0.25, 1.0, 48.0]))
counts = hnp.arrays(float, (STATES, ACTIONS), elements=st.sampled_from([0.0, 0.125, 1.0, 30.0]))
right_sides = hnp.arrays(float, (STATES, ACTIONS), elements=st.integers(-64, 64).map(float))
dampings = st.sampled_from([2.0**-30, 2.0**-10, 1.0])


def to_probs(cuts):
    edges = np.sort(np.pad(cuts, ((0, 0), (1, 1)), constant_values=((0, 0), (0, 64))), axis=1)
    return np.diff(edges, axis=1) / 64


def solve_exactly(matrix, h):
    """Gaussian elimination in rational numbers."""
    rows = [[*map(Fraction, row), Fraction(x)] for row, x in zip(matrix, h, strict=True)]
    for i in range(len(rows)):
        pivot = next(r for r in range(i, len(rows)) if rows[r][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for r in range(len(rows)):
            if r != i:
                rows[r] = [x - rows[r][i] * y for x, y in zip(rows[r], rows[i], strict=True)]
    return np.array([float(row[-1]) for row in rows])


def fractions(values):
    return [[Fraction(x) for x in row] for row in np.asarray(values).tolist()]


def check_blocks(found, matrices, h, damping):
    for v, matrix, right in zip(np.asarray(found), matrices, h, strict=True):
        lam = Fraction(damping)
        damped = [[x + lam * (i == j) for j, x in enumerate(row)] for i, row in enumerate(matrix)]
        exact = solve_exactly(damped, right)
        np.testing.assert_allclose(v, exact, rtol=1e-11, atol=1e-11 * np.abs(exact).max())


def blocks_of(probs, weights, mass=None):
    mass = None if mass is None else jnp.asarray(mass)
    return Blocks(jnp.arange(STATES), jnp.asarray(weights), jnp.asarray(probs), mass)


@given(cuts, visits, right_sides, dampings)
@float64
def test_the_covariance_block_is_solved_as_by_rational_elimination(cuts, weights, h, damping):
    r"""$(d\, C(\pi) + \lambda I)^{-1} h$, also masked, unvisited, and hardly damped."""
    probs = to_probs(cuts)
    found = jitted_covariance(blocks_of(probs, weights), jnp.asarray(h), jnp.asarray(damping))
    matrices = [
        [[Fraction(d) * (a * (i == j) - a * b) for j, b in enumerate(p)] for i, a in enumerate(p)]
        for d, p in zip(weights.tolist(), fractions(probs), strict=True)
    ]
    check_blocks(found, matrices, h, damping)


@given(cuts, counts, right_sides, dampings)
@float64
def test_the_block_of_scores_is_solved_as_by_rational_elimination(cuts, mass, h, damping):
    r"""$(\sum_a c_a (e_a - \pi)(e_a - \pi)^\top + \lambda I)^{-1} h$."""
    probs = to_probs(cuts)
    # An action of probability zero is never taken.
    mass = np.where(probs > 0, mass, 0.0)
    blocks = blocks_of(probs, mass.sum(1), mass)
    found = jitted_scores(blocks, jnp.asarray(h), jnp.asarray(damping))
    matrices = []
    for c, p in zip(fractions(mass), fractions(probs), strict=True):
        score = [[(i == a) - p[i] for i in range(ACTIONS)] for a in range(ACTIONS)]
        matrices.append(
            [
                [
                    sum(c[a] * score[a][i] * score[a][j] for a in range(ACTIONS))
                    for j in range(ACTIONS)
                ]
                for i in range(ACTIONS)
            ]
        )
    check_blocks(found, matrices, h, damping)


jitted_covariance = jax.jit(solve_covariance)
jitted_scores = jax.jit(solve_scores)
jitted_pseudo = jax.jit(pseudo_solve)


@given(cuts, visits, right_sides)
@float64
def test_the_pseudo_inverse_is_moore_and_penroses(cuts, weights, h):
    probs = to_probs(cuts)
    found = jitted_pseudo(blocks_of(probs, weights), jnp.asarray(h))
    for v, d, p, right in zip(np.asarray(found), weights, probs, h, strict=True):
        inverse = np.linalg.pinv(np.diag(p) - np.outer(p, p), rcond=1e-10)
        expected = inverse @ right / d if d > 0 else np.zeros(ACTIONS)
        np.testing.assert_allclose(v, expected, rtol=1e-9, atol=1e-9 * (1 + np.abs(expected).max()))


@float64
def test_damping_vanishing_leads_to_the_pseudo_inverse_in_the_range():
    """They are two different things, which agree in the limit, at a rate linear in lambda."""
    probs = to_probs(np.random.default_rng(0).integers(1, 64, (STATES, ACTIONS - 1)))
    weights = np.linspace(0.1, 2.0, STATES)
    h = np.random.default_rng(1).normal(size=(STATES, ACTIONS))
    h = np.where(probs > 0, h, 0.0)
    h -= (probs > 0) * h.sum(1, keepdims=True) / (probs > 0).sum(1, keepdims=True)
    blocks, h = blocks_of(probs, weights), jnp.asarray(h)
    limit = np.asarray(jitted_pseudo(blocks, h))
    errors = [
        np.abs(np.asarray(jitted_covariance(blocks, h, jnp.asarray(lam))) - limit).max()
        for lam in (1e-2, 1e-6, 1e-8)
    ]
    assert errors[0] > 0.05
    assert errors[1] / errors[2] == pytest.approx(100, rel=0.1)
    assert errors[2] < 1e-4


# Whole tables.


def solve_by_all(space, policy, h):
    fisher = Fisher(space, policy, Exact()(space, policy))
    return Block().solve(fisher, h, 1e-3)[0], Dense().solve(fisher, h, 1e-3)[0]


@float64
def test_block_and_dense_solve_the_definition_of_the_fisher(world):
    tables = random_tables(world, 1)
    h = np.random.default_rng(2).normal(size=tables.forward.shape)
    found = eqx.filter_jit(solve_by_all)(
        world.space, Tabular(jnp.asarray(tables.forward)), Tabular(jnp.asarray(h))
    )
    matrix = oracles.trajectory_fisher(world, tables.pf) + 1e-3 * np.eye(h.size)
    expected = np.linalg.solve(matrix, h.ravel())
    for solution in found:
        np.testing.assert_allclose(np.ravel(solution.logits), expected, rtol=1e-8)


@float64
def test_the_block_pseudo_inverse_solves_whole_tables():
    world = explore(oracles.WORLDS["shortcuts"])
    tables = random_tables(world, 3)
    h = oracles.exact_gradient(world, tables)

    @eqx.filter_jit
    def solve(space, policy, h):
        return BlockPseudoinverse().solve(Fisher(space, policy, Exact()(space, policy)), h, 0.0)[0]

    policy = Tabular(jnp.asarray(tables.forward))
    found = solve(world.space, policy, Tabular(jnp.asarray(h.reshape(tables.forward.shape))))
    fisher = oracles.trajectory_fisher(world, tables.pf)
    v = np.ravel(found.logits)
    np.testing.assert_allclose(v, np.linalg.pinv(fisher, rcond=1e-10) @ h, rtol=1e-8, atol=1e-10)
    # `prop:score_compatible_gradient`: a score-form gradient lies in the range.
    np.testing.assert_allclose(fisher @ v, h, atol=1e-12)
    q, delta = oracles.path_probs(world, tables.pf), oracles.residuals(world, tables)
    assert h @ v <= q @ (2 * delta) ** 2


def solve_sampled(space, flow, batch):
    """A right-hand side that is nowhere zero, through each sampled Fisher."""
    h = Tabular(jnp.cos(jnp.arange(flow.forward.logits.size)).reshape(flow.forward.logits.shape))
    fishers = [
        Fisher(space, flow.forward, route(space, flow.forward, batch))
        for route in (Sampled(), SampledScores())
    ]
    return [Block().solve(f, h, 1e-2)[0].logits for f in fishers], [f.as_matrix() for f in fishers]


@pytest.mark.parametrize("picked", [[0], [0, 0, 6]], ids=["fewer visits than states", "more"])
@float64
def test_states_that_were_not_visited_get_h_over_lambda(picked):
    world = explore(oracles.WORLDS["shortcuts"])
    tables = random_tables(world, 4)
    found, matrices = on_batch(world, make_flow(tables), solve_sampled, np.array(picked))
    h = np.cos(np.arange(tables.forward.size))
    unseen = np.delete(
        np.arange(world.space.num_inner),
        np.unique([s for i in picked for s in world.paths[i][0][:-1]]),
    )
    assert len(unseen) > 1
    for v, matrix in zip(found, matrices, strict=True):
        expected = np.linalg.solve(matrix + 1e-2 * np.eye(h.size), h)
        np.testing.assert_allclose(np.ravel(v), expected, rtol=1e-9)
        np.testing.assert_allclose(v[unseen], h.reshape(v.shape)[unseen] / 1e-2, rtol=1e-12)


def test_solvers_say_which_damping_they_need():
    for solver in (Block(), Dense()):
        solver.check_damping(1e-9)
        for damping in (0.0, -1.0, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="damping must be positive and finite"):
                solver.check_damping(damping)
    BlockPseudoinverse().check_damping(0.0)
    with pytest.raises(ValueError, match=r"takes damping=0, got 0.1; Block is damped"):
        BlockPseudoinverse().check_damping(0.1)


def test_the_pseudo_inverse_refuses_outer_products_of_scores():
    world = explore(oracles.WORLDS["shortcuts"])
    policy = Tabular.forward(world.space)
    rows = jnp.arange(world.space.num_inner)
    fisher = Fisher(world.space, policy, Occupancy(rows, jnp.ones(len(rows)), 0 * rows))
    with pytest.raises(ValueError, match="needs blocks exact in the action; use Sampled"):
        BlockPseudoinverse().solve(fisher, policy, 0.0)


# Sample space.


def sample_space(space, flow, batch):
    fisher = ScoreFisher(space, flow, batch)
    return fisher.gram(), jax.tree.map(jnp.negative, proximal_step(fisher, 1e-2)[0])


@float64
def test_the_gram_matrix_is_that_of_the_residuals_jacobian(world):
    r"""$J J^\top$ over forward table, backward table and $\log Z$, and the Gauss-Newton step."""
    tables = random_tables(world, 5)
    gram, step = on_batch(world, make_flow(tables), sample_space)
    jacobian = oracles.jacobian(world, tables)
    np.testing.assert_allclose(gram, jacobian @ jacobian.T, atol=1e-12)
    check_gauss_newton(world, tables, jacobian, step, np.ones(len(jacobian)))


@float64
def test_a_backward_policy_that_is_not_learned_is_not_in_the_gram_matrix():
    world = explore(oracles.WORLDS["shortcuts"])
    tables = random_tables(world, 5)._replace(log_pb=oracles.uniform_backward(world))
    gram, step = on_batch(world, make_flow(tables, learned=False), sample_space)
    jacobian = oracles.jacobian(world, tables, learned=False)
    np.testing.assert_allclose(gram, jacobian @ jacobian.T, atol=1e-12)
    check_gauss_newton(world, tables, jacobian, step, np.ones(len(jacobian)))


def check_gauss_newton(world, tables, jacobian, step, weights):
    r"""$-(J^\top W J / N + \lambda I)^{-1} J^\top W \delta / N$."""
    matrix = (weights[:, None] * jacobian).T @ jacobian / len(jacobian)
    right = jacobian.T @ (weights * oracles.residuals(world, tables)) / len(jacobian)
    expected = -np.linalg.solve(matrix + 1e-2 * np.eye(len(matrix)), right)
    np.testing.assert_allclose(flatten(step), expected, atol=1e-11)
    assert np.abs(expected).max() > 0.1


@float64
def test_gauss_newton_weighs_residuals_by_importance_and_curvature():
    """A Huber penalty by iterated least squares, with an off-policy reference."""
    world = explore(oracles.WORLDS["shortcuts"])
    tables = random_tables(world, 6)
    _, step = on_batch(
        world,
        make_flow(tables),
        sample_space,
        penalty=Huber(0.7),
        proposal=UniformMixture(0.4),
        reference=UniformMixture(0.1),
    )
    uniform = world.forward_valid / world.forward_valid.sum(1, keepdims=True)
    mu, nu = (oracles.path_probs(world, (1 - e) * tables.pf + e * uniform) for e in (0.4, 0.1))
    delta = oracles.residuals(world, tables)
    weights = nu / mu * np.minimum(1, 0.7 / np.abs(delta))
    assert weights.min() < 0.8 * weights.max()
    check_gauss_newton(world, tables, oracles.jacobian(world, tables), step, weights)


@float64
def test_a_batch_with_repeated_trajectories_has_equal_rows():
    world = explore(oracles.WORLDS["shortcuts"])
    tables, picked = random_tables(world, 7), np.array([2, 5, 2, 10, 5])
    gram, _ = on_batch(world, make_flow(tables), sample_space, picked)
    jacobian = oracles.jacobian(world, tables)[picked]
    np.testing.assert_allclose(gram, jacobian @ jacobian.T, atol=1e-12)


# Sample space, networks.


@pytest.fixture(scope="module")
def network():
    """Batch, dense Jacobian and residuals of a network, at float64."""
    with jax.enable_x64(True):
        space = enumerate_states(DeceptiveGrid(side=6))
        make = Network(width=5)
        flow = Flow(make(space, key=jax.random.key(1)), Uniform().backward(space), jnp.array(0.3))
        flow = jax.tree.map(lambda x: x.astype(float) if eqx.is_inexact_array(x) else x, flow)
        draw = jax.jit(lambda key: rollout(space, flow.forward, OnPolicy(), 7, key=key))
        paths = draw(jax.random.key(2))
        params, static = eqx.partition(flow, eqx.is_inexact_array)
        flat, unravel = ravel_pytree(params)

        def residuals(x):
            objective = TrajectoryBalance()
            flow = eqx.combine(unravel(x), static)
            flow = eqx.tree_at(lambda f: f.forward, flow, Plainly(flow.forward))
            return objective.residuals(space, flow, paths)[0]

        laws = {"proposal": OnPolicy(), "reference": None, "weighting": Weighting()}
        batch = evaluate(TrajectoryBalance(), space, flow, paths, whole=True, **laws)
        return space, flow, batch, np.asarray(jax.jit(jax.jacobian(residuals))(flat)), unravel


@float64
def test_the_rows_of_a_network_are_the_jacobian_of_its_residuals(network):
    space, flow, batch, jacobian, unravel = network
    rows = residual_rows(space, flow, batch.paths, batch.probs)
    np.testing.assert_allclose(rows, jacobian, atol=1e-12)
    x, v = np.arange(7.0), np.linspace(-1, 1, jacobian.shape[1])
    np.testing.assert_allclose(flatten(batch.pull(jnp.asarray(x))), x @ jacobian, atol=1e-12)
    np.testing.assert_allclose(batch.push(unravel(jnp.asarray(v))), jacobian @ v, atol=1e-12)


@float64
def test_rows_in_blocks_give_the_same_gram_matrix(network):
    space, flow, batch, jacobian, unravel = network
    scale = np.linspace(0.5, 2, jacobian.shape[1])
    without = replace(batch, tape=None)
    gram = residual_gram(space, flow, without, unravel(jnp.asarray(scale)), block=3)
    assert batch.tape is not None
    from_tape = residual_gram(space, flow, batch, unravel(jnp.asarray(scale)))
    np.testing.assert_allclose(from_tape, gram, atol=1e-11)
    np.testing.assert_allclose(gram, (jacobian * scale) @ jacobian.T, atol=1e-11)


@pytest.mark.parametrize("scaled", [False, True])
@float64
def test_the_proximal_step_is_its_argmin(network, scaled):
    r"""Also SPRING's recursion: $|J v - \delta|^2 / N + \lambda |v - c|_D^2$, densely."""
    space, flow, batch, jacobian, unravel = network
    random = np.random.default_rng(0)
    inverse = random.uniform(0.2, 3, jacobian.shape[1]) if scaled else np.ones(jacobian.shape[1])
    centre, damping = random.normal(size=inverse.size), 0.03
    scale = unravel(jnp.asarray(inverse)) if scaled else None
    fisher = ScoreFisher(space, flow, batch)
    step, taken = proximal_step(fisher, damping, unravel(jnp.asarray(centre)), scale)
    product = jacobian.T @ (jacobian @ centre) / 7
    np.testing.assert_allclose(flatten(fisher.mv(unravel(jnp.asarray(centre)))), product, rtol=1e-9)
    metric = damping * np.diag(1 / inverse)
    matrix = jacobian.T @ jacobian / 7 + metric
    expected = np.linalg.solve(matrix, jacobian.T @ batch.residuals / 7 + metric @ centre)
    np.testing.assert_allclose(flatten(step), expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(taken, jacobian @ flatten(step), rtol=1e-6, atol=1e-9)
    scores = flatten(batch.scores(step.forward))
    np.testing.assert_allclose(batch.scores_along(step, taken), scores, rtol=1e-6, atol=1e-9)


def test_a_table_has_no_scale_in_sample_space():
    world = explore(oracles.WORLDS["grid"])
    flow = make_flow(random_tables(world, 1))
    with pytest.raises(ValueError, match="a table has no scale in sample space"):
        on_batch(world, flow, lambda *given: residual_gram(*given, flow))
