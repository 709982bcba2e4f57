"""The update rules of the study of directed graphs, on a small network."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from oracles import as_trajectories, explore, float64, on_batch

import natgfn as ng
from natgfn.fisher import Fisher
from natgfn.occupancy import Stratified
from natgfn.occupancy.stratified import pick
from natgfn.optim import divergence_in_fisher, limit_divergence
from natgfn.optim.trust_region import divergences
from natgfn.policies import Flow, Network, Uniform
from natgfn.solvers import KFAC, ConjugateGradients
from paper.rules import ControlledAdam, DampedFisher, adaptive_solve

pytestmark = pytest.mark.slow

WIDE = {"norm": 1e6, "kl": 1e6, "clip": 1e6}


@pytest.fixture(scope="module")
def world():
    return explore(ng.envs.Hypergrid(side=3))


def network_flow(world):
    forward = Network(width=4, depth=1)(world.space, key=jax.random.key(3))
    flow = Flow(forward, Uniform().backward(world.space), jnp.array(0.3))
    return jax.tree.map(lambda x: x.astype(float) if eqx.is_inexact_array(x) else x, flow)


def flat(tree):
    return ravel_pytree(eqx.filter(tree, eqx.is_inexact_array))[0]


@pytest.mark.parametrize("count", [3, 5, 20, 200])
@float64
def test_different_visits_are_picked_and_every_depth_first(world, count):
    def picked(space, flow, batch):
        return pick(batch, count)

    paths = as_trajectories(world)
    live = np.asarray(paths.live)
    states, valid = map(np.asarray, on_batch(world, network_flow(world), picked))
    assert len(states) == min(count, live.size)
    assert valid.sum() == min(count, live.sum())
    depths = np.asarray(world.space.level)[states[valid]]  # a grid is graded
    deepest = live.any(axis=1).sum()
    assert len(set(depths[:deepest])) == min(count, deepest)
    everywhere = np.asarray(paths.before)[live]
    found, counts = np.unique(states[valid], return_counts=True)
    for state, times in zip(found, counts, strict=True):
        assert times <= (everywhere == state).sum()


@float64
def test_other_residuals_pick_other_states(world):
    flow = network_flow(world)

    def picked(space, flow, batch):
        return pick(batch, 10)[0]

    first = on_batch(world, flow, picked)
    other = on_batch(world, eqx.tree_at(lambda f: f.log_z, flow, flow.log_z + 1), picked)
    assert not np.array_equal(first, other)
    np.testing.assert_array_equal(first, on_batch(world, flow, picked))


@float64
def test_weights_are_those_of_a_mean(world):
    def weights(space, flow, batch):
        return Stratified(7)(space, flow.forward, batch).weights

    np.testing.assert_allclose(on_batch(world, network_flow(world), weights), 1 / 7)


def some_fisher(space, flow, batch):
    return Fisher(space, flow.forward, Stratified(12)(space, flow.forward, batch))


def dense(fisher):
    _, unravel = ravel_pytree(eqx.filter(fisher.policy, eqx.is_inexact_array))
    size = flat(fisher.policy).size
    return jax.vmap(lambda v: flat(fisher.mv(unravel(v))))(jnp.eye(size))


@pytest.mark.parametrize(
    ("iterations", "tolerance", "used", "after"),
    [(200, 1e-9, 0.03, 0.9 * 0.03), (2, 1e-9, 0.06, 0.06), (200, 0.5, 0.03, 0.9 * 0.03)],
)
@float64
def test_a_missed_solve_is_repeated_with_twice_the_damping(
    world, iterations, tolerance, used, after
):
    solver = ConjugateGradients(iterations=iterations, tolerance=tolerance, warm_start=True)
    steps = adaptive_solve(solver, 0.03, 0.3)

    def solve(space, flow, batch):
        fisher, h = some_fisher(space, flow, batch), batch.gradient().forward
        direction, state = steps.update(h, steps.init(h), fisher=fisher)
        matrix = dense(fisher) + used * jnp.eye(flat(h).size)
        left = jnp.linalg.norm(matrix @ flat(direction) - flat(h)) / jnp.linalg.norm(flat(h))
        return left, state.damping, state.solver.residual, state.solver.iterations

    left, damping, residual, number = on_batch(world, network_flow(world), solve)
    assert float(left) == pytest.approx(float(residual), rel=1e-6, abs=1e-12)
    assert (left <= tolerance) == (iterations == 200)
    assert float(damping) == pytest.approx(after)
    assert number <= iterations


@float64
def test_damping_does_not_rise_above_its_limit(world):
    steps = adaptive_solve(ConjugateGradients(iterations=1, tolerance=1e-9), 0.2, 0.3)

    def solve(space, flow, batch):
        h = batch.gradient().forward
        _, once = steps.update(h, steps.init(h), fisher=some_fisher(space, flow, batch))
        _, twice = steps.update(h, once, fisher=some_fisher(space, flow, batch))
        return once.damping, twice.damping

    np.testing.assert_allclose(on_batch(world, network_flow(world), solve), 0.3)


@pytest.mark.parametrize("limit", [1e-6, 1e3])
@float64
def test_the_predicted_divergence_is_a_quadratic_form(world, limit):
    steps = limit_divergence(limit, divergence_in_fisher)

    def shorten(space, flow, batch):
        fisher, step = some_fisher(space, flow, batch), batch.gradient().forward
        shorter, _ = steps.update(step, steps.init(step), fisher=fisher)
        return flat(step), flat(shorter), dense(fisher)

    step, shorter, matrix = on_batch(world, network_flow(world), shorten)
    predicted = step @ matrix @ step / 2
    expected = step * min(1.0, np.sqrt(limit / predicted))
    np.testing.assert_allclose(shorter, expected, rtol=1e-10)


def updated(rule):
    def update(space, flow, batch):
        params = eqx.filter(flow, eqx.is_inexact_array)
        transform, context = rule.transform(), rule.context(space, flow, batch)
        state, gradient = transform.init(params), batch.gradient()
        step, _ = transform.update(gradient, state, params, **context)
        moved = eqx.apply_updates(flow.forward, step.forward)
        return step, divergences(context["guard"], moved), gradient, dense(context["fisher"])

    return update


@float64
def test_steps_are_short_in_norm_and_in_every_state(world):
    for rule in (DampedFisher(), ControlledAdam(rate=0.1)):
        step, found, *_ = on_batch(world, network_flow(world), updated(rule))
        assert np.linalg.norm(flat(step.forward)) <= 1e-2 * (1 + 1e-9)
        assert 1e-6 < float(found.max()) <= 1e-4


@float64
def test_without_bounds_it_is_the_damped_natural_step_with_decay(world):
    rule = DampedFisher(rate=0.7, states=12, **WIDE)
    flow = network_flow(world)
    step, _, gradient, matrix = on_batch(world, flow, updated(rule))
    h = flat(gradient.forward) + 1e-5 * flat(flow.forward)
    direction = -flat(step.forward) / 0.7
    left = matrix @ direction + 0.03 * direction - h
    assert np.linalg.norm(left) <= 0.05 * np.linalg.norm(h)
    assert float(step.log_z) == pytest.approx(-1e-3 * float(gradient.log_z))


@float64
def test_any_solver_can_take_the_place_of_conjugate_gradients(world):
    rule, flow = DampedFisher(states=12, solver=KFAC(), **WIDE), network_flow(world)
    step, *_ = on_batch(world, flow, updated(rule))

    def solve(space, flow, batch):
        h = jax.tree.map(
            lambda g, x: g + 1e-5 * x,
            batch.gradient().forward,
            eqx.filter(flow.forward, eqx.is_inexact_array),
        )
        return KFAC().solve(some_fisher(space, flow, batch), h, 0.03)[0]

    expected = -0.05 * flat(on_batch(world, flow, solve))
    np.testing.assert_allclose(flat(step.forward), expected, rtol=1e-8, atol=1e-15)


@float64
def test_without_bounds_controlled_adam_is_adam_with_decay(world):
    flow = network_flow(world)
    step, _, gradient, _ = on_batch(world, flow, updated(ControlledAdam(**WIDE)))
    adam = optax.chain(optax.add_decayed_weights(1e-5), optax.adam(3e-4))
    params = eqx.filter(flow.forward, eqx.is_inexact_array)
    expected, _ = adam.update(gradient.forward, adam.init(params), params)
    np.testing.assert_allclose(flat(step.forward), flat(expected), rtol=1e-8)


def test_it_learns_inside_the_loop():
    run = ng.train(
        ng.envs.Hypergrid(side=4),
        DampedFisher(rate=1.0, norm=1.0, kl=1e-2),
        policy=Network(width=8),
        batch=32,
        updates=30,
        evaluate_every=30,
        progress=False,
    )
    assert run.metrics["loss"][-1, 0] < 0.9 * run.metrics["loss"][0, 0]
    assert run.metrics["rejected"][-1, 0] == 0


@pytest.mark.parametrize("wrong", [{"kl": 0.0}, {"norm": -1.0}, {"rate": -1.0}, {"most": 0.01}])
def test_numbers_are_checked(wrong):
    with pytest.raises(ValueError, match="must be"):
        DampedFisher(**wrong)
