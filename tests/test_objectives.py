"""Trajectory balance, its gradient, and penalties."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from oracles import explore, facts, float64, make_flow, on_batch, random_tables

from natgfn.objectives import Huber, Squared, TrajectoryBalance, curvature, slope
from natgfn.policies import Flow, Tabular
from natgfn.sampling import UniformMixture
from natgfn.statespace import constructive_flow
from paper.rules import HalfHuber

LAWS = {"proposal": UniformMixture(0.4), "reference": UniformMixture(0.1)}


@float64
def test_residuals_are_log_z_and_forward_less_reward_and_backward(world):
    """`eq:tb_residual_training`."""
    tables = random_tables(world, 1)
    found = on_batch(world, make_flow(tables), facts)
    np.testing.assert_allclose(found.residuals, oracles.residuals(world, tables), atol=1e-12)


@float64
def test_the_residual_of_every_trajectory_vanishes_at_the_constructive_flow(world):
    """`eq:app_exact_TB_pathwise`, for a backward policy drawn at random."""
    tables = random_tables(world, 2)
    log_flow, log_pf = eqx.filter_jit(constructive_flow)(
        world.space, jnp.asarray(tables.log_pb), jnp.asarray(world.space.log_rewards)
    )
    logits = jnp.where(log_pf > -jnp.inf, log_pf, 0.0)
    flow = Flow(Tabular(logits), Tabular(jnp.asarray(tables.backward)), log_flow[0])
    np.testing.assert_allclose(on_batch(world, flow, facts).residuals, 0.0, atol=1e-12)


def loss_by_hand(world, tables, weights, penalty):
    return np.mean(weights * penalty(oracles.residuals(world, tables)))


def central_differences(world, tables, weights, penalty, step=1e-5):
    """The loss moved along every parameter in turn, the weights held where they are."""

    def moved(part, at, by):
        logits = getattr(tables, part).copy()
        logits[at] += by
        valid = world.forward_valid if part == "forward" else world.backward_valid
        log_name = {"forward": "log_pf", "backward": "log_pb"}[part]
        changed = tables._replace(**{part: logits, log_name: oracles.log_softmax(logits, valid)})
        return loss_by_hand(world, changed, weights, penalty)

    slopes = [
        (moved(part, at, step) - moved(part, at, -step)) / (2 * step)
        for part in ("forward", "backward")
        for at in np.ndindex(getattr(tables, part).shape)
    ]
    up, down = (
        loss_by_hand(world, tables._replace(log_z=tables.log_z + by), weights, penalty)
        for by in (step, -step)
    )
    return np.array([*slopes, (up - down) / (2 * step)])


def huber(u, threshold=0.7):
    return 2 * scipy.special.huber(threshold, u)


@pytest.mark.parametrize(
    ("name", "penalty", "by_hand", "derivative"),
    [
        ("grid", None, np.square, lambda u: 2 * u),
        ("tree", None, np.square, lambda u: 2 * u),
        ("shortcuts", Huber(0.7), huber, lambda u: 2 * np.clip(u, -0.7, 0.7)),
    ],
)
@float64
def test_the_gradient_is_that_of_the_loss_and_the_mean_of_weighted_scores(
    name, penalty, by_hand, derivative
):
    r"""$\frac1N \sum_i w_i \ell'(\delta_i) \nabla\delta_i$, against finite differences too."""
    world = explore(oracles.WORLDS[name])
    tables = random_tables(world, 3)
    found = on_batch(world, make_flow(tables), facts, penalty=penalty, **LAWS)
    weights = np.asarray(found.weights)
    assert np.ptp(weights) > 0.01
    assert float(found.loss) == pytest.approx(loss_by_hand(world, tables, weights, by_hand))
    gradient = oracles.flatten(found.gradient)
    delta = oracles.residuals(world, tables)
    by_scores = (weights * derivative(delta)) @ oracles.jacobian(world, tables) / len(delta)
    np.testing.assert_allclose(gradient, by_scores, atol=1e-12)
    by_differences = central_differences(world, tables, weights, by_hand)
    np.testing.assert_allclose(gradient, by_differences, atol=1e-7)


@float64
def test_the_loss_of_all_trajectories_is_the_exact_expectation():
    world = explore(oracles.WORLDS["grid"])
    tables = random_tables(world, 4)
    q = oracles.path_probs(world, tables.pf)
    found = on_batch(world, make_flow(tables), facts, frequency=q)
    assert float(found.loss) == pytest.approx(q @ oracles.residuals(world, tables) ** 2, rel=1e-12)
    h = oracles.exact_gradient(world, tables)
    np.testing.assert_allclose(np.ravel(found.gradient.forward.logits), h, atol=1e-12)


def test_any_function_can_be_a_penalty():
    world = explore(oracles.WORLDS["shortcuts"])
    tables = random_tables(world, 5)
    flow = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), make_flow(tables))
    found = on_batch(world, flow, facts, penalty=lambda u: jnp.log(jnp.cosh(u)))
    delta = oracles.residuals(world, tables)
    assert float(found.loss) == pytest.approx(np.mean(np.log(np.cosh(delta))), rel=1e-5)
    np.testing.assert_allclose(found.least_squares_weights, np.tanh(delta) / (2 * delta), rtol=1e-4)


# Penalties.

TINY = 1e-300  # XLA flushes subnormal numbers to zero
values = hnp.arrays(np.float64, 9, elements=st.floats(-50, 50))
thresholds = st.sampled_from([0.1, 1.0, 7.0])
evaluate_all = eqx.filter_jit(lambda penalty, u: jax.vmap(penalty)(u))
slope_all = eqx.filter_jit(slope)
curvature_all = eqx.filter_jit(curvature)


@given(values, thresholds)
@float64
def test_huber_is_twice_scipys(u, threshold):
    found = evaluate_all(Huber(threshold), jnp.asarray(u))
    np.testing.assert_allclose(found, 2 * scipy.special.huber(threshold, u), rtol=1e-12, atol=TINY)
    half = evaluate_all(HalfHuber(threshold), jnp.asarray(u))
    np.testing.assert_allclose(half, scipy.special.huber(threshold, u), rtol=1e-12, atol=TINY)


@given(values, thresholds)
@float64
def test_huber_has_a_continuous_and_bounded_slope(u, threshold):
    u[0], u[1] = threshold * (1 - 1e-12), threshold * (1 + 1e-12)
    found = slope_all(Huber(threshold), jnp.asarray(u))
    np.testing.assert_allclose(found, 2 * np.clip(u, -threshold, threshold), rtol=1e-9, atol=TINY)


@given(values, thresholds)
@float64
def test_curvature_of_huber_is_the_weight_of_iterated_least_squares(u, threshold):
    """One up to the threshold, also at zero where it is a limit, and falling off beyond."""
    u[0] = 0.0
    found = curvature_all(Huber(threshold), jnp.asarray(u))
    expected = np.minimum(1, threshold / np.maximum(np.abs(u), 1e-300))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_curvature_of_squares_is_one():
    found = curvature(Squared(), jnp.array([0.0, 1e-8, -3.0, 100.0]))
    np.testing.assert_allclose(found, 1.0, rtol=1e-6)


def test_penalties_vanish_at_zero_and_are_even():
    for penalty in (Squared(), Huber(0.5)):
        assert float(penalty(jnp.array(0.0))) == 0.0
        assert float(penalty(jnp.array(1.5))) == float(penalty(jnp.array(-1.5))) > 1.0


def test_squares_are_the_default_penalty():
    assert isinstance(TrajectoryBalance().penalty, Squared)


@pytest.mark.parametrize("threshold", [0.0, -1.0, float("nan")])
def test_a_threshold_must_be_positive(threshold):
    with pytest.raises(ValueError, match="threshold must be positive"):
        Huber(threshold)
