"""Certificates without enumeration: against the exact ones, and against dense matrices."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int
from oracles import float64

import natgfn as ng
from natgfn.algorithm import Algorithm, stack_seeds
from natgfn.certify import Effort, certificate
from natgfn.certify.conditioning import directional_floor
from natgfn.certify.inverses import nystrom
from natgfn.certify.operators import random_rows, visits_product
from natgfn.certify.pencil import Products, extreme_pairs
from natgfn.certify.policy import _CERTIFY, certify_states, reference_of
from natgfn.certify.sampled import _floor, halves, sampled_fisher
from natgfn.fisher import Fisher, Occupancy
from natgfn.occupancy import Exact, Factorised, Sampled, SampledScores
from natgfn.optim import Adam, Natural
from natgfn.policies import AbstractPolicy, Flow, Network, Uniform
from natgfn.statespace import enumerate_states

pytestmark = pytest.mark.slow

GRID = ng.envs.Hypergrid(side=4)
SPACE = enumerate_states(GRID)
KEY = jax.random.key(5)
EFFORT = Effort(rank=24, iterations=24, complete=False)
RULE = Natural(Sampled(), damping=0.05, rate=0.1)


class Linear(AbstractPolicy):
    """Logits linear in the one-hot coordinates, of a `GridState` or of the number of a state."""

    weight: Float[Array, "actions features"]
    bias: Float[Array, " actions"]
    cells: Int[np.ndarray, "states dims"] | None

    def __call__(self, state):
        cell = state.cell if self.cells is None else jnp.asarray(self.cells)[state]
        hot = (cell[:, None] == jnp.arange(GRID.side)).astype(self.weight.dtype).ravel()
        return self.weight @ hot + self.bias


def setting(env=GRID, rule=RULE, batch=16):
    """An algorithm at a random policy: the same on the grid and on its states by number."""
    algorithm = Algorithm(env=env, rule=rule, batch=batch).with_traced_numbers()
    weight = jax.random.normal(jax.random.key(1), (3, 8)) * 0.5
    cells = None if env is GRID else np.asarray(SPACE.states.cell)
    forward = Linear(weight, jnp.array([0.3, 0.0, -0.5]), cells)
    return algorithm, algorithm.init(Flow(forward, Uniform().backward(env), jnp.ones(())), 0)


def certified(algorithm, state, **options):
    effort = EFFORT._replace(**options)
    return certificate(algorithm, state, key=KEY, effort=effort)


def matrices(algorithm, state, effort=EFFORT):
    """Reference, its halves, and surrogate of the certificate with `KEY`."""
    batch_key, other_key, _ = jax.random.split(KEY, 3)
    policy = state.flow.forward

    @jax.jit
    def dense():
        reference_key, _ = jax.random.split(other_key)
        num = effort.reference * algorithm.batch
        reference = sampled_fisher(GRID, policy, num, key=reference_key)
        batch = algorithm.draw(state.flow, batch_key)
        seen = Fisher(GRID, policy, algorithm.rule.metric()[0](GRID, policy, batch))
        return [f.as_matrix() for f in (reference, *halves(reference), seen)]

    return [np.asarray(matrix) for matrix in dense()]


def relative_error(fisher, other, damping=0.05):
    damped = fisher + damping * np.eye(len(fisher))
    return np.abs(scipy.linalg.eigh(other - fisher, damped, eigvals_only=True)).max()


@pytest.mark.parametrize("occupancy", [Sampled(), SampledScores()])
@float64
def test_numbers_are_those_of_dense_matrices(occupancy):
    algorithm, state = setting(rule=Natural(occupancy, damping=0.05, rate=0.1))
    found = certified(algorithm, state, complete=True)
    reference, half, other_half, seen = matrices(algorithm, state)
    np.testing.assert_allclose((half + other_half) / 2, reference, atol=1e-12)
    rho = relative_error(reference, seen)
    assert float(found["rho"]) == pytest.approx(rho, rel=5e-3)
    assert rho <= float(found["rho"] + found["rho_error"]) * (1 + 1e-9)
    error = relative_error(reference, half)
    assert float(found["reference_error"]) == pytest.approx(error, rel=5e-3)
    assert error == pytest.approx(relative_error(reference, other_half))
    values = np.linalg.eigvalsh(reference)
    rank = (values / (values + 0.05)).sum()
    assert float(found["effective_rank"]) == pytest.approx(rank, rel=1e-3)
    assert float(found["direction_error"]) <= float(found["direction_limit"])
    assert 0 < float(found["curvature_floor"]) <= values[-1]
    layer = np.repeat([0, 1], [24, 3])
    blocks = np.where(layer[:, None] == layer, reference, 0.0)
    assert float(found["gamma"]) == pytest.approx(relative_error(blocks, reference), rel=0.01)


@float64
def test_without_a_sketch_numbers_are_lower_bounds_that_are_reached():
    algorithm, state = setting()
    reference, half, _, seen = matrices(algorithm, state)
    layer = np.repeat([0, 1], [24, 3])
    blocks = np.where(layer[:, None] == layer, reference, 0.0)
    truth = {
        "rho": relative_error(reference, seen),
        "reference_error": relative_error(reference, half),
        "gamma": relative_error(blocks, reference),
    }
    for iterations in (2, 40):
        found = certified(algorithm, state, rank=0, states=20, iterations=iterations, complete=True)
        for name, value in truth.items():
            assert 0 < float(found[name]) <= value * (1 + 1e-9)
            if iterations == 40:
                assert float(found[name]) == pytest.approx(value, rel=5e-3)
    assert np.isfinite(float(found["direction_error"]))


@float64
def test_a_certificate_is_the_same_step_by_step_and_as_one_program():
    algorithm, state = setting()
    effort = EFFORT._replace(rank=6, iterations=6, complete=True)
    called = []

    def told():
        called.append(None)

    plain = certificate(algorithm, state, key=KEY, effort=effort, tell=told)
    whole = jax.jit(lambda: certificate(algorithm, state, key=KEY, effort=effort))()
    assert plain.keys() == whole.keys()
    for name, value in plain.items():
        np.testing.assert_allclose(value, whole[name], rtol=1e-6, atol=1e-9, err_msg=name)
    assert 0.5 * effort.products(2) < len(called) <= effort.products(2)


def test_systems_that_were_not_solved_are_left_out():
    algorithm, state = setting()
    states = stack_seeds(lambda _: state, [0])
    for iterations, given in ((1, False), (40, True)):
        effort = EFFORT._replace(iterations=iterations, complete=True, rank=4)
        found = certify_states(algorithm, states, effort)
        assert ({"direction_error", "gradient_error"} <= set(found)) == given
        assert np.isfinite(found["gradient_outside"]).all()


@float64
def test_the_curvature_floor_is_that_of_all_visits_at_once():
    _, state = setting()
    fisher = sampled_fisher(GRID, state.flow.forward, 150, key=KEY)
    _, unravel = ravel_pytree(eqx.filter(fisher.policy, eqx.is_inexact_array))
    h = jax.random.normal(KEY, (27,))
    bound = eqx.filter_jit(directional_floor)(fisher, unravel(h / jnp.linalg.norm(h)))
    assert float(_floor(fisher, h)) == pytest.approx(float(bound.value), rel=1e-9)


# What may be afforded.

BITS = ng.envs.BitSequences()


def test_effort_is_all_of_it_where_that_takes_minutes_and_less_where_it_does_not():
    grid = setting()[0]
    policy = Network()(GRID, key=KEY)
    assert Effort.of_minutes(grid, policy) == Effort()
    assert Effort.of_minutes(setting(SPACE)[0], policy) == Effort()
    assert Effort.of_minutes(grid, policy, complete=False) == Effort(complete=False)

    large, found = Network()(BITS, key=KEY), []
    for batch in (16, 128, 1_024):
        algorithm = Algorithm(env=BITS, rule=RULE, batch=batch)
        found.append(Effort.of_minutes(algorithm, large))
        assert found[-1].rank == 0
        assert found[-1].sides == 2
    visits = [effort.passes(6) * n for effort, n in zip(found, (16, 128, 1_024), strict=True)]
    assert max(visits[:2]) * 15 * 251_168 < 4.1e11
    assert found[0].reference > found[1].reference > found[2].reference == 2
    assert found[0].iterations > found[1].iterations > found[2].iterations == 2
    less = Effort.of_minutes(Algorithm(env=BITS, rule=RULE, batch=16), large, share=0.1)
    assert less.passes(6) < found[0].passes(6) / 5


@float64
def test_a_large_reference_gives_what_the_exact_one_does():
    exact = certified(*setting(SPACE))
    assert "reference_error" not in exact
    found = certified(*setting(), reference=1_024)
    rho, error = float(found["rho"]), float(found["reference_error"])
    assert error < 0.05
    assert (rho - error) / (1 + error) <= float(exact["rho"]) <= (rho + error) / (1 - error)


@float64
def test_the_error_of_the_reference_is_that_against_the_truth_and_falls_with_its_square_root():
    forward, policy = (setting(env)[1].flow.forward for env in (GRID, SPACE))
    truth = np.asarray(Fisher(SPACE, policy, Exact()(SPACE, policy)).as_matrix())

    def both(key, num):
        whole = sampled_fisher(GRID, forward, num, key=key)
        return whole.as_matrix(), halves(whole)[0].as_matrix()

    means = []
    for num in (256, 4_096):
        found = jax.jit(jax.vmap(partial(both, num=num)))(jax.random.split(KEY, 24))
        pairs = list(zip(*map(np.asarray, found), strict=True))
        stated = np.mean([relative_error(whole, half) for whole, half in pairs])
        actual = np.mean([relative_error(truth, whole) for whole, _ in pairs])
        assert stated == pytest.approx(actual, rel=0.25)
        means.append(stated)
    assert means[0] / means[1] == pytest.approx(4, rel=0.25)


@float64
def test_a_surrogate_that_is_the_reference_has_no_error():
    _, state = setting()
    fisher = visits_product(sampled_fisher(GRID, state.flow.forward, 64, key=KEY))

    @jax.jit
    def error():
        inverse = nystrom(fisher, 27, KEY).inverse(0.05)
        start = jax.random.normal(KEY, (2, fisher.size))
        pencil = Products(lambda x: (fisher.mv(x), fisher.mv(x)), fisher.size)
        return extreme_pairs(pencil, 0.05, inverse, start, 8)

    found = error()
    assert float(found.value) == 0
    assert float(found.error) == 0


@float64
def test_products_skip_padding_and_keep_actions():
    _, state = setting()
    fisher = sampled_fisher(GRID, state.flow.forward, 150, key=KEY)
    visits = fisher.occupancy
    actions = jnp.arange(visits.weights.size) % 3
    weights = visits.weights * jnp.arange(visits.weights.size)
    scores = Fisher(GRID, fisher.policy, Occupancy(visits.states, weights, actions))
    for one in (fisher, scores):
        product = visits_product(one)
        found = jax.jit(jax.vmap(product.mv))(jnp.eye(product.size))
        np.testing.assert_allclose(found, eqx.filter_jit(one.as_matrix)(), atol=1e-10)


@float64
def test_random_rows_have_the_fisher_for_a_mean():
    _, state = setting()
    fisher = sampled_fisher(GRID, state.flow.forward, 16, key=KEY)
    matrix, rows = jax.jit(lambda: (fisher.as_matrix(), random_rows(fisher, 100_000, KEY)))()
    np.testing.assert_allclose(rows.T @ rows, matrix, atol=0.02 * float(jnp.max(matrix)))


def test_a_quick_certificate_changes_nothing_and_is_below_the_full_one():
    """Both of the same batch, in single precision."""
    algorithm, state = setting(rule=Adam())
    states = stack_seeds(lambda _: state, [0, 1])
    before = jax.tree.map(np.array, eqx.filter(states, eqx.is_array))
    quick = certify_states(algorithm, states)
    after = eqx.filter(states, eqx.is_array)
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert quick["rho"].shape == (2,)
    assert "direction_error" not in quick
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), _CERTIFY)
    full = jax.jit(lambda: certificate(algorithm, state, key=key, effort=EFFORT))()
    for name in ("rho", "reference_error"):
        assert 0 < quick[name][0] <= full[name] * 1.01
    assert full["reference_error"] <= 1


def with_momentum(state, algorithm, flow, factor):
    """A state whose momentum is a gradient of some flow, times a factor."""
    gradient = eqx.filter_jit(lambda a, flow: a.draw(flow, KEY).gradient().forward)
    momentum = jax.tree.map(lambda x: factor * x, gradient(algorithm, flow))
    return eqx.tree_at(lambda s: s.optimiser["forward"][0].mu, state, momentum)


@pytest.mark.parametrize("env", [GRID, SPACE])
def test_the_share_of_a_momentum_does_not_depend_on_its_size(env):
    """In single precision, where the squares of a tiny one are zero."""
    algorithm, state = setting(env, rule=Adam())
    shares = []
    for factor in (1.0, 2.0**-60, 2.0**-70, 2.0**-110):
        states = stack_seeds(
            lambda _, f=factor: with_momentum(state, algorithm, state.flow, f), [0]
        )
        shares.append(certify_states(algorithm, states)["momentum_outside"][0])
    assert 0 < shares[0] < 1
    assert shares == [shares[0]] * 4


@pytest.mark.parametrize("env", [GRID, SPACE])
def test_a_collapsed_policy_has_numbers_or_none(env):
    """All actions have probability zero or one: neither the Fisher nor the gradient is left."""
    algorithm, state = setting(env, rule=Adam())
    sure = eqx.tree_at(lambda s: s.flow.forward.bias, state, jnp.array([1e4, 0.0, -1e4]))
    states = stack_seeds(lambda _: with_momentum(sure, algorithm, state.flow, 2.0**-70), [0])
    found = certify_states(algorithm, states)
    assert {"rho", "momentum_outside", "gradient_outside"} <= set(found)
    assert not any(np.isnan(values).any() for values in found.values())
    assert found["momentum_outside"][0] == pytest.approx(1)


def test_the_reference_in_words():
    def words(algorithm, state):
        return reference_of(algorithm, state.flow.forward)

    assert words(*setting(SPACE)) == "exact"
    assert words(*setting(batch=128)) == "sampled from 2,048 trajectories (16 batches)"


@pytest.mark.parametrize("occupancy", [Exact(), Factorised()])
def test_a_rule_that_needs_every_state_says_so(occupancy):
    algorithm, state = setting(rule=Natural(occupancy, rate=0.1))
    with pytest.raises(ValueError, match=r"needs every state") as raised:
        certificate(algorithm, state, key=KEY, effort=EFFORT)
    assert "\n" not in str(raised.value)
