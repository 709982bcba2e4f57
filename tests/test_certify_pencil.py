"""The error of a surrogate Fisher without a matrix, against dense eigenvalues."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from oracles import float64

import natgfn as ng
from natgfn.certify.inverses import nystrom
from natgfn.certify.operators import Root, fisher_root
from natgfn.certify.pencil import relative_error_estimate
from natgfn.certify.surrogate import coupling, pencil_eigenvalues, relative_error
from natgfn.fisher import Fisher, Occupancy
from natgfn.occupancy import Exact
from natgfn.policies import AbstractPolicy, Network
from natgfn.sampling import OnPolicy, rollout
from natgfn.statespace import StateSpace, enumerate_states

pytestmark = pytest.mark.slow

DAMPINGS = (1e-3, 1e-1, 10.0)
DRAWN = (8, 64)
CASES = {
    "hypergrid": (ng.envs.Hypergrid(side=8), Network(width=16, depth=1)),
    "deceptive": (ng.envs.DeceptiveGrid(side=12), Network(width=12, depth=2)),
}
SIZES = {"hypergrid": 323, "deceptive": 495}


def in_float32(tree):
    return jax.tree.map(lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, tree)


@eqx.filter_jit
def matrix(space, policy, occupancy):
    return Fisher(space, policy, occupancy).as_matrix()


@eqx.filter_jit
def estimate(space, policy, occupancy, surrogate, damping, key, iterations=None):
    fisher = fisher_root(Fisher(space, policy, occupancy))
    other = fisher_root(Fisher(space, policy, surrogate))
    inverse = nystrom(fisher, 128, key).inverse(damping)
    key = jax.random.fold_in(key, 1)
    limit = {} if iterations is None else {"iterations": iterations}
    return relative_error_estimate(fisher, other, damping, inverse, key=key, **limit)


class Case(NamedTuple):
    """A network that is far from uniform, its exact occupancy and sampled ones, in float64.

    All occupancies are padded to one length, so that each estimate is one program.
    """

    space: StateSpace
    policy: AbstractPolicy
    exact: Occupancy
    sampled: dict[int, Occupancy]
    fisher: jax.Array
    surrogates: dict[int, jax.Array]

    def estimate(self, occupancy, surrogate, damping, *, seed=0, iterations=None):
        arguments = self.policy, occupancy, surrogate, np.float64(damping)
        found = estimate(self.space, *arguments, jax.random.key(seed), iterations)
        return jax.tree.map(float, found)

    def estimate_in_float32(self, occupancy, surrogate, damping):
        arguments = in_float32((self.policy, occupancy, surrogate))
        with jax.enable_x64(False):
            found = estimate(self.space, *arguments, np.float32(damping), jax.random.key(0))
            assert found.value.dtype == jnp.float32
        return jax.tree.map(float, found)


@functools.cache
def case(name) -> Case:
    env, design = CASES[name]
    space = enumerate_states(env)
    length = max(DRAWN) * space.max_steps

    def padded(states, weights):
        extra = (0, length - len(weights))
        return Occupancy(jnp.pad(states.astype(jnp.int32), extra), jnp.pad(weights, extra))

    with jax.enable_x64(True):
        policy = design(space, key=jax.random.key(1))
        policy = jax.tree.map(lambda x: 2.5 * x if eqx.is_inexact_array(x) else x, policy)
        # What single precision can hold, so that both precisions have the same policy.
        policy = jax.tree.map(
            lambda x: x.astype(jnp.float64) if eqx.is_inexact_array(x) else x, in_float32(policy)
        )
        exact = eqx.filter_jit(Exact())(space, policy)
        exact, sampled = padded(exact.states, exact.weights), {}
        drawn = eqx.filter_jit(rollout)(
            space, policy, OnPolicy(), max(DRAWN), key=jax.random.key(2)
        )
        for num in DRAWN:
            weights = (drawn.live[:, :num] / num).astype(jnp.float64)
            sampled[num] = padded(drawn.before[:, :num].ravel(), weights.ravel())
        fisher = matrix(space, policy, exact)
        matrices = {num: matrix(space, policy, sampled[num]) for num in DRAWN}
    return Case(space, policy, exact, sampled, fisher, matrices)


DENSE = {"rho": jax.jit(relative_error), "gamma": jax.jit(coupling)}


@functools.cache
def truth(name, num, damping, what="rho"):
    c = case(name)
    with jax.enable_x64(True):
        return float(DENSE[what](c.fisher, c.surrogates[num], damping))


def check_converged(found, expected):
    """A lower bound, to one per cent, whose error bar reaches the truth."""
    assert found.value <= expected * (1 + 1e-6)
    assert found.value >= expected * 0.99
    assert found.value + found.error >= expected * (1 - 1e-6)
    assert found.error <= 0.0101 * found.value
    assert found.value == max(abs(found.high), abs(found.low))
    assert -1 <= found.low <= found.high
    assert found.iterations < 64


@pytest.mark.parametrize("num", DRAWN)
@pytest.mark.parametrize("name", CASES)
@float64
def test_the_estimate_certifies_the_dense_relative_error(name, num):
    c = case(name)
    assert len(c.fisher) == SIZES[name]
    for damping in DAMPINGS:
        found = c.estimate(c.exact, c.sampled[num], damping)
        check_converged(found, truth(name, num, damping))


@pytest.mark.parametrize("num", DRAWN)
@pytest.mark.parametrize("name", CASES)
@float64
def test_with_the_roles_exchanged_the_estimate_certifies_the_coupling(name, num):
    c = case(name)
    for damping in DAMPINGS:
        found = c.estimate(c.sampled[num], c.exact, damping)
        check_converged(found, truth(name, num, damping, "gamma"))


@pytest.mark.parametrize("num", DRAWN)
@float64
def test_single_precision_certifies_the_same_to_one_per_cent(num):
    c = case("deceptive")
    for damping in DAMPINGS:
        rho, gamma = (truth("deceptive", num, damping, what) for what in DENSE)
        forth = c.estimate_in_float32(c.exact, c.sampled[num], damping)
        back = c.estimate_in_float32(c.sampled[num], c.exact, damping)
        for found, expected in ((forth, rho), (back, gamma)):
            assert found.value == pytest.approx(expected, rel=0.01)
            # Rounding may lift a quotient a little.
            assert found.value <= expected * (1 + 1e-4)
            assert found.value + found.error >= expected * (1 - 1e-4)
            assert found.low >= -1 - 1e-4


@float64
def test_an_estimate_cut_short_stays_a_lower_bound_and_says_that_it_is_not_done():
    """What was found then need not be near the largest; but some eigenvalue is as near as said."""
    c, open_ = case("hypergrid"), 0
    for num in DRAWN:
        for damping in DAMPINGS:
            expected = truth("hypergrid", num, damping)
            found = c.estimate(c.exact, c.sampled[num], damping, iterations=2)
            assert found.iterations <= 2
            assert found.low >= -1
            assert found.value <= expected * (1 + 1e-6)
            if found.value < 0.99 * expected:
                assert found.error > 0.01 * found.value
                open_ += 1
            values = np.asarray(pencil_eigenvalues(c.fisher, c.surrogates[num], damping))
            check_near_an_eigenvalue(found, values)
    assert open_ > 3


def check_near_an_eigenvalue(found, values):
    signed = found.high if abs(found.high) >= abs(found.low) else found.low
    nearest = np.abs(values - signed).min()
    assert nearest <= found.error * (1 + 1e-6) + 1e-9 * np.abs(values).max()


# Surrogates with a known answer.


@float64
def test_the_fisher_itself_is_certified_without_error():
    c = case("hypergrid")
    for damping in DAMPINGS:
        found = c.estimate(c.exact, c.exact, damping)
        assert found.value <= 1e-9
        assert found.value + found.error <= 1e-6


@float64
def test_three_times_the_fisher_is_certified_at_its_closed_form():
    c = case("hypergrid")
    largest = np.linalg.eigvalsh(c.fisher)[-1]
    thrice = Occupancy(c.exact.states, 3 * c.exact.weights)
    for damping in DAMPINGS:
        found = c.estimate(c.exact, thrice, damping)
        check_converged(found, 2 * largest / (largest + damping))
        assert found.low >= -1e-9


# The sketch.


def root_of(a):
    return Root(lambda x: a @ x, lambda y: a.T @ y, a.shape[1])


sketch_of = jax.jit(lambda a, rank, key: nystrom(root_of(a), rank, key), static_argnums=1)


@float64
def test_the_root_to_certify_is_that_of_the_fisher_on_flat_parameters():
    c = case("hypergrid")

    @eqx.filter_jit
    def look(space, policy, occupancy, v, key):
        root = fisher_root(Fisher(space, policy, occupancy))
        assert root.size == len(v)
        return root.forward(v), root.mv(v), nystrom(root, 40, key)

    v = np.random.default_rng(0).normal(size=len(c.fisher))
    rows, product, sketch = look(c.space, c.policy, c.exact, v, jax.random.key(0))
    fisher, scale = np.asarray(c.fisher), float(np.abs(c.fisher).max())
    np.testing.assert_allclose(rows @ rows, v @ fisher @ v, rtol=1e-11)
    np.testing.assert_allclose(product, fisher @ v, atol=1e-11 * scale)
    assert len(ravel_pytree(eqx.filter(c.policy, eqx.is_inexact_array))[0]) == len(v)
    # The sketch of a real Fisher: below it, and most of it.
    below = (sketch.vectors * sketch.values) @ sketch.vectors.T
    assert np.linalg.eigvalsh(fisher - below).min() >= -1e-8 * scale
    assert np.trace(below) > 0.9 * np.trace(fisher)


def decaying(seed, rows, size):
    """Rows whose Gram matrix has eigenvalues over six orders of magnitude."""
    rng = np.random.default_rng(seed)
    left, _ = np.linalg.qr(rng.normal(size=(rows, rows)))
    right, _ = np.linalg.qr(rng.normal(size=(size, size)))
    return (left * np.logspace(0.5, -2.5, rows)) @ right[:rows]


@pytest.mark.parametrize("rank", [10, 25, 99])
@float64
def test_a_certified_sketch_is_below_the_matrix_and_exact_at_full_rank(rank):
    a = decaying(0, 25, 40)
    matrix = a.T @ a
    sketch = sketch_of(a, rank, jax.random.key(rank))
    vectors, values = np.asarray(sketch.vectors), np.asarray(sketch.values)
    assert vectors.shape == (40, min(rank, 40))
    seen = vectors[:, values > 1e-6]  # others carry nothing
    np.testing.assert_allclose(seen.T @ seen, np.eye(seen.shape[1]), atol=1e-8)
    assert np.all(np.diff(values) <= 0)
    below = (vectors * values) @ vectors.T
    scale = np.linalg.eigvalsh(matrix)[-1]
    assert np.linalg.eigvalsh(matrix - below).min() >= -1e-8 * scale
    gap = np.abs(matrix - below).max() / scale
    if rank >= 25:
        assert gap < 1e-10
    else:
        assert gap > 1e-6
        assert values[-1] > 1e-6


@float64
def test_the_sketch_solves_what_the_certificate_says_it_solves():
    a = decaying(1, 25, 40)
    sketch = sketch_of(a, 10, jax.random.key(0))
    u, values = np.asarray(sketch.vectors), np.asarray(sketch.values)
    x = np.random.default_rng(2).normal(size=(3, 40))
    for damping, tail in ((0.1, 0.0), (1e-3, 0.02), (5.0, 1.0)):
        inside = (u * values) @ u.T
        dense = inside + tail * (np.eye(40) - u @ u.T) + damping * np.eye(40)
        expected = np.linalg.solve(dense, x.T).T
        found = sketch.solve(jnp.asarray(x), damping, tail)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)
    # The two stand-ins: with the last value for the tail, and above the true inverse.
    inverse, damping = sketch.inverse(0.1), 0.1
    near, above = (np.asarray(jax.vmap(f)(jnp.eye(40))) for f in inverse)
    tail = values[-1] * (np.eye(40) - u @ u.T)
    dense = (u * values) @ u.T + tail + damping * np.eye(40)
    np.testing.assert_allclose(near, np.linalg.inv(dense), atol=1e-11)
    exact = np.linalg.inv(a.T @ a + damping * np.eye(40))
    assert np.linalg.eigvalsh(above - exact).min() >= -1e-9
    assert np.linalg.eigvalsh(above - exact).max() > 1e-3


# Any matrices.


@jax.jit
def estimate_of_matrices(a, b, damping, key):
    inverse = nystrom(root_of(a), 6, key).inverse(damping)
    key = jax.random.fold_in(key, 1)
    return relative_error_estimate(root_of(a), root_of(b), damping, inverse, key=key, iterations=30)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    decay=st.floats(-3.0, 0.0),
    noise=st.floats(-2.0, 0.5),
    damping=st.floats(-3.0, 1.0),
)
@float64
def test_the_estimate_certifies_any_two_matrices(seed, decay, noise, damping):
    """From a poor preconditioner."""
    rng, size = np.random.default_rng(seed), 24
    scales = np.logspace(0, decay, size)
    a = rng.normal(size=(30, size)) * scales
    b = a[:20] + 10**noise * rng.normal(size=(20, size)) * scales
    damping = 10**damping
    fisher, surrogate = a.T @ a, b.T @ b
    values = scipy.linalg.eigh(
        surrogate - fisher, fisher + damping * np.eye(size), eigvals_only=True
    )
    expected = np.abs(values).max()
    dense = relative_error(jnp.asarray(fisher), jnp.asarray(surrogate), damping)
    np.testing.assert_allclose(dense, expected, rtol=1e-8)
    found = estimate_of_matrices(a, b, np.float64(damping), jax.random.key(seed % 1000))
    found = jax.tree.map(float, found)
    assert found.value <= expected * (1 + 1e-9)
    assert found.value >= expected * 0.99
    assert -1 - 1e-9 <= found.low <= found.high
    check_near_an_eigenvalue(found, values)
