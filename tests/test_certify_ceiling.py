"""Limits on the relative error from few states, against dense matrices."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import float64

import natgfn as ng
from natgfn.certify.ceiling import ceiling, shared_rows
from natgfn.certify.pencil import extreme_pairs
from natgfn.certify.surrogate import relative_error
from natgfn.fisher import Fisher, Occupancy
from natgfn.occupancy import Exact
from natgfn.policies import Network, Tabular
from natgfn.sampling import OnPolicy, rollout
from natgfn.statespace import enumerate_states

pytestmark = pytest.mark.slow

SPACE = enumerate_states(ng.envs.Hypergrid(side=5))


def network(seed, scale=2.5):
    policy = Network(width=6, depth=1)(SPACE, key=jax.random.key(seed))
    return jax.tree.map(lambda x: scale * x.astype(float) if eqx.is_inexact_array(x) else x, policy)


@eqx.filter_jit
def sampled(policy, num, key, scores):
    paths = rollout(SPACE, policy, OnPolicy(), num, key=key)
    weights = jnp.where(paths.live, 1 / num, 0.0).ravel()
    return Occupancy(paths.before.ravel(), weights, paths.actions.ravel() if scores else None)


@eqx.filter_jit
def look(policy, visited, damping, states, iterations=2, both=False):
    """Limit, estimate and the true relative error."""
    fisher = Fisher(SPACE, policy, Exact()(SPACE, policy))
    pencil = shared_rows(fisher, visited)
    limit = ceiling(fisher, pencil, damping, states)
    found = extreme_pairs(pencil, damping, limit.inverse, limit.start, iterations, both=both)
    surrogate = Fisher(SPACE, policy, visited).as_matrix()
    return limit, found, fisher.as_matrix(), surrogate


@pytest.mark.parametrize(("scores", "states"), [(False, 1), (True, 6), (False, 99)])
@float64
def test_the_certified_interval_has_the_dense_relative_error(scores, states):
    for seed in range(6):
        for damping in (1e-3, 1e-1):
            policy = network(seed)
            visited = sampled(policy, 16, jax.random.key(seed), scores)
            limit, found, exact, other = look(policy, visited, np.float64(damping), states)
            rho = float(relative_error(exact, other, damping))
            assert found.value <= rho * (1 + 1e-9)
            assert limit.value >= rho * (1 - 1e-9)
            assert found.value + found.error >= found.value
            if states > SPACE.num_inner and rho > 1:
                np.testing.assert_allclose(limit.value, rho, rtol=1e-6)
                np.testing.assert_allclose(found.value, rho, rtol=1e-6)


@float64
def test_the_pencil_and_the_inverse_of_a_certificate_are_those_of_the_matrices():
    policy = network(0)

    @eqx.filter_jit
    def matrices(visited):
        fisher = Fisher(SPACE, policy, Exact()(SPACE, policy))
        pencil = shared_rows(fisher, visited)
        eye = jnp.eye(pencil.rows.size)
        whole, part = (ceiling(fisher, pencil, 0.1, states) for states in (25, 5))
        products = (pencil.fisher.mv, pencil.surrogate.mv, whole.inverse.near, part.inverse.above)
        other = Fisher(SPACE, policy, visited).as_matrix()
        ranks = whole.effective_rank, part.effective_rank
        return fisher.as_matrix(), other, [jax.vmap(mv)(eye) for mv in products], ranks

    for scores in (False, True):
        exact, other, products, (whole, part) = matrices(
            sampled(policy, 8, jax.random.key(1), scores)
        )
        inverse = np.linalg.inv(exact + 0.1 * np.eye(len(exact)))
        for found, expected in zip(products, (exact, other, inverse), strict=False):
            np.testing.assert_allclose(found, expected, atol=1e-8)
        rank = np.trace(exact @ inverse)
        np.testing.assert_allclose(whole, rank, rtol=1e-8)
        assert part <= rank
        assert np.linalg.eigvalsh(products[-1] - inverse).min() >= -1e-8


@float64
def test_the_ratio_alone_certifies_a_table_with_little_damping():
    """There no state helps another: the limit of the ratios is attained."""
    logits = jax.random.normal(jax.random.key(0), (SPACE.num_inner, SPACE.num_actions))
    policy = Tabular(logits)
    visited = sampled(policy, 8, jax.random.key(1), scores=False)
    limit, _, exact, other = look(policy, visited, np.float64(1e-9), 1)
    rho = float(relative_error(exact, other, 1e-9))
    assert rho > 1
    assert rho * (1 - 1e-9) <= float(limit.value) <= 1.01 * rho


@float64
def test_the_exact_occupancy_is_certified_at_zero():
    policy = network(0)
    limit, found, _, _ = look(policy, Exact()(SPACE, policy), np.float64(1e-3), 4)
    assert float(limit.value) <= 1e-12
    assert float(found.value) <= 1e-12
