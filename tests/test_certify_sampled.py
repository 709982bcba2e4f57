"""Certificates without enumeration: against the exact ones, and against dense matrices."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jaxtyping import Array, Float, Int
from oracles import float64

import natgfn as ng
from natgfn.algorithm import Algorithm, stack_seeds
from natgfn.certify import Effort, certificate
from natgfn.certify.pencil import (
    Products,
    extreme_pairs,
    nystrom,
    random_rows,
    visits_product,
)
from natgfn.certify.policy import (
    _CERTIFY,
    certify_states,
    halves,
    reference_of,
    sampled_fisher,
)
from natgfn.fisher import Fisher, Occupancy
from natgfn.occupancy import Exact, Factorised, Sampled, SampledScores
from natgfn.optim import Adam, Natural
from natgfn.policies import AbstractPolicy, Flow, Uniform
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
    return jax.jit(lambda: certificate(algorithm, state, key=KEY, effort=effort))()


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
