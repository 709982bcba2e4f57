"""Metrics against scipy, and evaluation without noise."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from oracles import ZERO_REWARD, explore, float64, make_flow, random_tables
from scipy.spatial import distance
from scipy.stats import entropy

import natgfn as ng
from natgfn.metrics import (
    METRICS,
    evaluate,
    expected_log_reward,
    jensen_shannon,
    kl_divergence,
    modes_found,
    total_variation,
)
from natgfn.policies import Flow, Tabular, Uniform
from natgfn.statespace import constructive_flow, enumerate_states

laws = hnp.arrays(np.float64, 7, elements=st.one_of(st.just(0.0), st.floats(1e-6, 1.0))).filter(
    lambda p: p.sum() > 0.1
)
kl, js, tv = jax.jit(kl_divergence), jax.jit(jensen_shannon), jax.jit(total_variation)


@given(laws, laws)
@float64
def test_kl_divergence_is_scipys_relative_entropy(q, p):
    """Infinite where the target has no mass, and exactly zero between equal laws."""
    q, p = q / q.sum(), p / p.sum()
    found = float(kl(jnp.asarray(q), jnp.asarray(p)))
    assert found == pytest.approx(entropy(q, p), rel=1e-9, abs=1e-14)
    assert np.isinf(found) == bool(((q > 0) & (p == 0)).any())
    assert float(kl(jnp.asarray(q), jnp.asarray(q))) == 0.0


@given(laws, laws)
@float64
def test_jensen_shannon_is_the_square_of_scipys_distance(q, p):
    q, p = q / q.sum(), p / p.sum()
    found = float(js(jnp.asarray(q), jnp.asarray(p)))
    # scipy sums terms of both signs, and loses the difference of close laws.
    assert found == pytest.approx(distance.jensenshannon(q, p) ** 2, rel=1e-7, abs=1e-13)


@given(laws, laws)
@float64
def test_total_variation_is_the_largest_difference_over_events(q, p):
    q, p = q / q.sum(), p / p.sum()
    largest = (q - p)[q > p].sum()
    assert float(tv(jnp.asarray(q), jnp.asarray(p))) == pytest.approx(largest, abs=1e-12)


@float64
def test_close_laws_have_a_divergence_free_of_rounding():
    """At a distance of 1e-9 the usual sum is rounding noise; here it is half the chi-square."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(50))
    change = 1e-9 * rng.normal(size=50)
    q = p * (1 + change - p @ change)
    chi_square = ((q - p) ** 2 / p).sum()
    assert float(kl(jnp.asarray(q), jnp.asarray(p))) == pytest.approx(
        chi_square / 2, rel=1e-3, abs=0
    )


def test_expected_log_reward_ignores_objects_that_are_never_made():
    q = jnp.array([0.25, 0.75, 0.0])
    log_reward = jnp.array([1.0, 2.0, -jnp.inf])
    assert float(expected_log_reward(q, log_reward)) == pytest.approx(1.75)
    assert float(expected_log_reward(q[::-1], log_reward)) == -np.inf


def test_a_mode_is_found_with_a_tenth_of_its_due_probability():
    modes = jnp.array([True, True, True, False])
    p = jnp.array([0.3, 0.3, 0.3, 0.1])
    q = jnp.array([0.031, 0.029, 0.84, 0.1])
    assert float(modes_found(q, p, modes)) == 2
    assert float(modes_found(q, p, modes, share=0.05)) == 3


@pytest.fixture(scope="module", params=["grid", "shortcuts"])
def evaluated(request):
    """Two float32 flows side by side, and the tables they are."""
    world = explore(oracles.WORLDS[request.param])
    tables = [random_tables(world, seed) for seed in (1, 2)]
    flows = [jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), make_flow(t)) for t in tables]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *flows)
    exact = []
    for flow in flows:
        forward = np.asarray(flow.forward.logits, np.float64)
        backward = np.asarray(flow.backward.logits, np.float64)
        exact.append(
            oracles.Tables(
                forward,
                backward,
                oracles.log_softmax(forward, world.forward_valid),
                oracles.log_softmax(backward, world.backward_valid),
                float(flow.log_z),
            )
        )
    return world, exact, *evaluate(world.space, stacked)


def test_evaluation_is_exact_in_float64_for_flows_in_float32(evaluated):
    """To twelve digits: nothing is sampled, and nothing is rounded to single precision."""
    world, tables, metrics, laws = evaluated
    target = np.exp(world.space.log_rewards) / np.exp(world.space.log_rewards).sum()
    assert laws.dtype == np.float64
    for seed, table in enumerate(tables):
        q = oracles.terminal_law(world, table.pf)
        paths = oracles.path_probs(world, table.pf)
        elbo = q @ world.space.log_rewards
        expected = {
            "tv": np.abs(q - target).sum() / 2,
            "kl": entropy(q, target),
            "reverse_kl": entropy(target, q),
            "jsd": distance.jensenshannon(q, target) ** 2,
            "elbo": elbo,
            "gap": target @ world.space.log_rewards - elbo,
            "l1": np.abs(q - target).mean(),
            "loss": paths @ oracles.residuals(world, table) ** 2,
        }
        np.testing.assert_allclose(laws[seed], q, rtol=1e-12)
        for name, value in expected.items():
            assert metrics[name].dtype == np.float64
            assert metrics[name][seed] == pytest.approx(value, rel=1e-11, abs=1e-12), name


def test_metrics_are_those_that_are_announced(evaluated):
    _, _, metrics, _ = evaluated
    assert set(metrics) == set(METRICS)
    assert all(value.shape == (2,) for value in metrics.values())


@pytest.mark.parametrize("name", ["grid", "shortcuts"])
def test_the_constructive_flow_has_zero_divergence_and_finds_every_mode(name):
    world = explore(oracles.WORLDS[name])
    with jax.enable_x64(True):
        log_pb = jnp.asarray(oracles.uniform_backward(world))
        log_flow, log_pf = eqx.filter_jit(constructive_flow)(
            world.space, log_pb, jnp.asarray(world.space.log_rewards)
        )
        logits = jnp.where(log_pf > -jnp.inf, log_pf, 0.0)
        flow = Flow(Tabular(logits), Tabular(jnp.zeros_like(log_pb)), log_flow[0])
        metrics, _ = evaluate(world.space, jax.tree.map(lambda x: x[None], flow))
    assert metrics["tv"][0] < 1e-14
    assert metrics["kl"][0] < 1e-28
    assert metrics["loss"][0] < 1e-25
    best = np.isclose(world.space.log_rewards, world.space.log_rewards.max()).sum()
    assert metrics["modes"][0] == best


def test_objects_without_reward_make_the_divergence_infinite():
    world = explore(ZERO_REWARD)
    flow = Flow(Tabular.forward(world.space), Tabular.backward(world.space), jnp.array(0.0))
    metrics, laws = evaluate(world.space, jax.tree.map(lambda x: x[None], flow))
    assert metrics["kl"][0] == np.inf
    assert metrics["elbo"][0] == -np.inf
    target = np.exp(world.space.log_target)
    assert metrics["reverse_kl"][0] == pytest.approx(entropy(target, laws[0]))


def test_evaluation_does_not_mind_programs_in_single_precision():
    """JAX would pass rewards that they have closed over in single precision again."""
    space = enumerate_states(ng.envs.Hypergrid(side=3))

    @jax.jit
    def total():
        return jax.lax.fori_loop(0, 9, lambda i, x: x + jnp.asarray(space.log_rewards)[i], 0.0)

    assert float(total()) == pytest.approx(space.log_rewards.sum(), rel=1e-5)
    flow = Flow(Tabular.forward(space), Uniform().backward(space), jnp.array(0.0))
    metrics, _ = evaluate(space, jax.tree.map(lambda x: x[None] if eqx.is_array(x) else x, flow))
    assert np.isfinite(metrics["kl"]).all()
