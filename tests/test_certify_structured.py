"""What structured occupancies promise about their Fisher, against matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import float64

from natgfn.certify import Bound, structured_errors, tabular
from natgfn.envs import Hypergrid, LazyWalk
from natgfn.fisher import Fisher
from natgfn.occupancy import Exact, Factorised
from natgfn.policies import Tabular, forward_probs
from natgfn.statespace import enumerate_states
from paper.theory import consistency, structured
from paper.theory.geometry import identifiable, natural_gradient
from paper.theory.instances import grid, random_table
from paper.theory.trajectories import path_scores

compiled = jax.jit(structured_errors, static_argnames="steps")


@given(seed=st.integers(0, 2**32 - 1))
@float64
def test_errors_are_those_of_a_loop_over_the_steps(seed):
    rng = np.random.default_rng(seed)
    exact, other, curvature = rng.random((3, 12))
    step = rng.integers(4, size=12)
    step[step == 2] = 3  # a step without contexts
    found = compiled(*map(jnp.asarray, (exact, other, step, curvature)), 0.1, steps=5)
    total = 0.0
    for t in range(5):
        here = step == t
        eps = np.abs(other[here] - exact[here]).sum()
        largest = curvature[here].max(initial=0.0)
        total += largest * eps
        assert found.occupancy[t] == pytest.approx(eps)
        assert found.curvature[t] == pytest.approx(largest)
        assert found.fisher[t] == pytest.approx(largest * eps)
    assert float(found.total) == pytest.approx(total)
    assert float(found.relative) == pytest.approx(total / 0.1)


@float64
def test_nothing_is_promised_about_steps_that_were_not_counted():
    exact, other = jnp.array([1.0, 0.5, 0.5]), jnp.array([1.0, 0.7, 0.5])
    curvature = jnp.full(3, 0.5)
    for step, total in (([0, 1, 1], 0.1), ([0, 2, 1], np.inf), ([0, -1, 1], np.inf)):
        found = structured_errors(exact, other, jnp.array(step), curvature, 1.0, steps=2)
        assert float(found.total) == pytest.approx(total)
    # Contexts that nobody visits may be anywhere: padding.
    padded = structured_errors(exact, other, jnp.array([7, 1, 7]), curvature, 1.0, steps=2)
    assert float(padded.total) == pytest.approx(0.1)
    broken = other.at[1].set(jnp.nan)
    for step in ([0, 1, 1], [0, 2, 1]):
        found = structured_errors(exact, broken, jnp.array(step), curvature, 1.0, steps=2)
        assert not float(found.total) < np.inf


@pytest.mark.slow
@pytest.mark.parametrize(
    "env", [Hypergrid(side=4), LazyWalk(reach=2, steps=3)], ids=["grid", "walk"]
)
@float64
def test_the_fisher_of_a_product_of_marginals_is_within_its_promise(env):
    space = enumerate_states(env)
    assert space.graded  # a state has one step
    policy = Tabular(jax.random.normal(jax.random.key(1), (space.num_inner, space.num_actions)))
    fishers = [Fisher(space, policy, route(space, policy)) for route in (Exact(), Factorised())]
    curvature = tabular.largest_eigenvalue(forward_probs(space, policy))
    weights = [fisher.occupancy.weights for fisher in fishers]
    step = jnp.asarray(space.level)[: space.num_inner]
    found = compiled(*weights, step, curvature, 0.05, steps=space.max_steps)
    dense = [np.asarray(fisher.as_matrix()) for fisher in fishers]
    error = np.linalg.norm(dense[1] - dense[0], 2)
    assert 0 < error <= float(found.total)
    rho = tabular.relative_error(*map(tabular.blocks_of, fishers), 0.05)
    assert float(rho) <= float(found.relative)
    # The states of one step have blocks of their own, so that the largest of their errors counts.
    change = np.abs(weights[1] - weights[0]) * np.asarray(curvature)
    assert error == pytest.approx(change.max())


@float64
def test_of_two_actions_the_curvature_is_twice_the_variance():
    p = jnp.linspace(0.0, 1.0, 101)
    found = jax.jit(tabular.largest_eigenvalue)(jnp.stack([p, 1 - p], axis=1))
    np.testing.assert_allclose(found, 2 * p * (1 - p), atol=1e-15)


# The statements.


@float64
def test_conditional_fishers_are_second_moments_of_scores():
    rng = np.random.default_rng(0)
    jacobian, probs = rng.normal(size=(5, 3, 4)), rng.dirichlet(np.ones(3), size=5)
    found = structured.conditional_fishers(jnp.asarray(jacobian), jnp.asarray(probs))
    for c in range(5):
        scores = jacobian[c] - probs[c] @ jacobian[c]
        expected = sum(probs[c, a] * np.outer(scores[a], scores[a]) for a in range(3))
        np.testing.assert_allclose(found[c], expected, atol=1e-14)


@float64
def test_the_least_slack_of_all_steps_counts():
    eye = jnp.eye(2)[None]
    conditional = jnp.concatenate([eye, jnp.diag(jnp.array([1.0, 0.0]))[None]])
    exact, other = jnp.zeros((3, 2)), jnp.array([[0.2, -0.2], [0.4, 0.0], [0.1, -0.3]])
    bound = structured.message_bound(structured.Messages(exact, other, conditional))
    assert (float(bound.value), float(bound.limit)) == pytest.approx((0.4, 0.4))


def steps_of(*fishers):
    return jnp.array(fishers, float)


@float64
def test_undamped_directions_are_those_of_pseudo_inverses():
    rng = np.random.default_rng(2)
    roots = np.einsum("pr,srk->spk", rng.normal(size=(5, 3)), rng.normal(size=(2, 3, 3)))
    exact = roots @ roots.transpose(0, 2, 1)
    other = exact + 1e-3 * exact[::-1]
    h = exact[0] @ rng.normal(size=5)
    fisher, surrogate = exact.sum(0), other.sum(0)
    bound = structured.undamped_bound(*map(jnp.asarray, (exact, other, h)))
    change = np.linalg.pinv(surrogate, rcond=1e-10) @ h - np.linalg.pinv(fisher, rcond=1e-10) @ h
    assert float(bound.value) == pytest.approx(np.linalg.norm(change), rel=1e-6)
    floor = np.linalg.eigvalsh(fisher)[2]
    total = sum(np.linalg.norm(b - a, 2) for a, b in zip(exact, other, strict=True))
    limit = total * np.linalg.norm(h) / (floor * (floor - total))
    assert total < floor
    assert float(bound.limit) == pytest.approx(limit, rel=1e-6)
    space = identifiable(jnp.asarray(fisher))
    assert float(space.floor) == pytest.approx(floor)
    projector = fisher @ np.linalg.pinv(fisher, rcond=1e-10)
    np.testing.assert_allclose(space.basis @ space.basis.T, projector, atol=1e-9)


@float64
def test_without_a_common_range_nothing_is_promised_and_nothing_could_be():
    h, e = jnp.array([1.0, 0.0]), 1e-3
    exact = steps_of([[1.0, 0.0], [0.0, 0.0]])
    tilted = steps_of([[1.0, e], [e, 2 * e**2]])
    bound = structured.undamped_bound(exact, tilted, h)
    assert bound.limit == jnp.inf
    total = float(structured.step_errors(exact, tilted)[0])
    assert not Bound(bound.value, total / (1 - total)).holds()
    # An error as large as the least curvature is too large as well.
    assert structured.undamped_bound(exact, 2.0 * exact, h).limit == jnp.inf
    assert structured.undamped_bound(exact, 1.9 * exact, h).limit < jnp.inf


@float64
def test_a_consistent_fisher_can_have_pseudo_inverses_that_diverge():
    """The warning of `prop:appendix_mc_regime`: what is projected converges, the rest need not."""
    fisher, h = jnp.diag(jnp.array([1.0, 0.0])), jnp.array([1.0, 0.0])
    projected, unrestricted = [], []
    for n in (1e2, 1e4, 1e6):
        e = n**-0.5
        sampled = jnp.array([[1.0 + e, e], [e, 2 * e**2]])
        projected.append(float(consistency.projected_direction(fisher, sampled, h)[0]))
        unrestricted.append(float(jnp.linalg.norm(natural_gradient(sampled, h, cutoff=1e-14))))
    np.testing.assert_allclose(projected, 1 / (1 + np.array([0.1, 0.01, 0.001])))
    assert unrestricted[2] > 5 * unrestricted[1] > 25 * unrestricted[0]


@pytest.mark.slow
@float64
def test_the_fisher_of_a_batch_is_unbiased_under_any_law_and_wrong_without_weights():
    paths = path_scores(grid(), random_table(grid(), jax.random.key(0)))
    law = jax.nn.softmax(jnp.log(paths.probs) / 2)
    multiplier = jnp.sin(jnp.arange(len(law)))
    sampling = consistency.Sampling(paths, law, multiplier)
    keys = jax.random.split(jax.random.key(1), 16)
    fishers, gradients = jax.lax.map(lambda key: sampling.estimates(50_000, key=key), keys)
    np.testing.assert_allclose(np.mean(fishers, axis=0), paths.fisher, atol=5e-3)
    h = (paths.probs * multiplier) @ paths.scores
    np.testing.assert_allclose(np.mean(gradients, axis=0), h, atol=5e-3)
    unweighted = jnp.einsum("n,tni,tnj->ij", law, paths.steps, paths.steps)
    assert np.abs(unweighted - paths.fisher).max() > 5e-2


@pytest.mark.slow
@float64
def test_batches_without_an_inverse_are_infinitely_far():
    paths = path_scores(grid(), random_table(grid(), jax.random.key(0)))
    multiplier = jnp.sin(jnp.arange(len(paths.probs)))
    sampling = consistency.Sampling(paths, paths.probs, multiplier)
    found = consistency.batch_errors(sampling, 0.01, 1, 8, key=jax.random.key(0))
    assert (np.asarray(found.projected) > 1e6).all()
    assert np.isfinite(np.asarray(found.damped)).all()


@float64
def test_the_measured_rate_is_the_slope_of_a_line():
    rng = np.random.default_rng(0)
    sizes, errors = np.array([10.0, 40.0, 90.0, 700.0]), rng.random(4)
    expected = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    found = consistency.measured_rate(jnp.asarray(sizes), jnp.asarray(errors))
    assert float(found) == pytest.approx(expected)
