"""The trajectory Fisher as an operator, against its definition over all trajectories."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.flatten_util import ravel_pytree
from oracles import explore, float64, make_flow, on_batch, random_tables

from natgfn.fisher import Fisher, Occupancy
from natgfn.occupancy import Exact, Sampled, SampledScores
from natgfn.policies import AbstractPolicy, Tabular
from natgfn.sampling import UniformMixture

EXACT = Exact()


@eqx.filter_jit
def exact_matrix(space, policy):
    return Fisher(space, policy, EXACT(space, policy)).as_matrix()


@float64
def test_the_fisher_matrix_is_its_definition_over_all_trajectories(world):
    """`eq:exact_fisher_main` and `thm:riemannian_policy_induced`: cross-time terms vanish."""
    tables = random_tables(world, 1)
    matrix = np.asarray(exact_matrix(world.space, Tabular(jnp.asarray(tables.forward))))
    np.testing.assert_allclose(matrix, oracles.trajectory_fisher(world, tables.pf), atol=1e-13)
    np.testing.assert_allclose(matrix, oracles.step_fisher(world, tables.pf), atol=1e-13)


@float64
def test_the_fisher_is_symmetric_semidefinite_and_blind_to_constants_in_a_state(world):
    tables = random_tables(world, 2)
    matrix = np.asarray(exact_matrix(world.space, Tabular(jnp.asarray(tables.forward))))
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-15)
    eigenvalues = np.linalg.eigvalsh(matrix)
    assert eigenvalues.min() > -1e-14
    # Each state has as many seen directions as valid actions, less one.
    seen = (world.forward_valid.sum(1) - 1).sum()
    assert (eigenvalues > 1e-10).sum() == seen
    for state in range(world.space.num_inner):
        constant = np.zeros(tables.forward.shape)
        constant[state] = 1.0
        np.testing.assert_allclose(matrix @ constant.ravel(), 0.0, atol=1e-14)


@float64
def test_a_table_has_a_block_diagonal_fisher(world):
    """`cor:exact_tabular_fisher_main`."""
    tables = random_tables(world, 3)
    matrix = np.array(exact_matrix(world.space, Tabular(jnp.asarray(tables.forward))))
    states, actions = tables.forward.shape
    blocks = matrix.reshape(states, actions, states, actions)
    visits = oracles.occupancy(world, tables.pf)
    for s, p in enumerate(tables.pf):
        expected = visits[s] * (np.diag(p) - np.outer(p, p))
        np.testing.assert_allclose(blocks[s, :, s], expected, atol=1e-13)
        blocks[s, :, s] = 0
    assert not blocks.any()


def sampled_matrices(space, flow, batch):
    return [
        Fisher(space, flow.forward, route(space, flow.forward, batch)).as_matrix()
        for route in (Sampled(), SampledScores())
    ]


def mixture(world, tables, epsilon):
    uniform = world.forward_valid / world.forward_valid.sum(1, keepdims=True)
    return oracles.path_probs(world, (1 - epsilon) * tables.pf + epsilon * uniform)


@float64
def test_sampled_fishers_are_unbiased_under_any_proposal(world):
    """`prop:appendix_mc_regime`: the exact expectation over all trajectories, corrected."""
    tables = random_tables(world, 4)
    found = on_batch(
        world,
        make_flow(tables),
        sampled_matrices,
        proposal=UniformMixture(0.4),
        frequency=mixture(world, tables, 0.4),
    )
    for matrix in found:
        np.testing.assert_allclose(matrix, oracles.step_fisher(world, tables.pf), atol=1e-13)


@float64
def test_sampled_fishers_are_unbiased_on_policy_and_equal_their_definition_on_a_batch():
    """`eq:sampled_fisher_training`, with the exact covariance and with outer products."""
    world = explore(oracles.WORLDS["shortcuts"])
    tables = random_tables(world, 5)
    flow, q = make_flow(tables), oracles.path_probs(world, tables.pf)
    for matrix in on_batch(world, flow, sampled_matrices, frequency=q):
        np.testing.assert_allclose(matrix, oracles.step_fisher(world, tables.pf), atol=1e-13)
    # Five trajectories, one of them twice; the others weigh nothing.
    drawn = np.bincount([0, 3, 3, 5, 8], minlength=len(q)) / 5
    covariance, outer = on_batch(world, flow, sampled_matrices, frequency=drawn)
    np.testing.assert_allclose(outer, oracles.step_fisher(world, tables.pf, drawn), atol=1e-13)
    expected = np.zeros((*tables.pf.shape, *tables.pf.shape))
    for state, visits in enumerate(drawn @ world.visits):
        p = tables.pf[state]
        expected[state, :, state] = visits * (np.diag(p) - np.outer(p, p))
    np.testing.assert_allclose(covariance, expected.reshape(covariance.shape), atol=1e-13)
    assert np.abs(covariance - outer).max() > 1e-3


class Features(AbstractPolicy):
    """Logits linear in what is observed: parameters shared between all states."""

    weights: jax.Array
    features: tuple[tuple[float, ...], ...] = eqx.field(static=True)

    def __call__(self, state):
        return self.weights @ jnp.asarray(self.features)[state]


def shared_policy(world, seed):
    """The policy, its table, and the logits' Jacobian `[inner, actions, parameters]`."""
    space = world.space
    observed = jax.jit(jax.vmap(space.observe))(jnp.arange(space.num_inner))
    features = np.append(observed, np.ones((space.num_inner, 1)), axis=1)
    weights = np.random.default_rng(seed).normal(size=(space.num_actions, features.shape[1]))
    pf = np.exp(oracles.log_softmax(features @ weights.T, world.forward_valid))
    jacobian = np.einsum("ab,sf->sabf", np.eye(space.num_actions), features)
    policy = Features(jnp.asarray(weights), tuple(map(tuple, features.tolist())))
    return policy, pf, jacobian.reshape(*pf.shape, -1)


@float64
def test_the_fisher_of_shared_parameters_is_its_definition_over_all_trajectories(world):
    """`eq:shared_exact_fisher_main`, from the trajectory scores of `eq:exact_fisher_main`."""
    policy, pf, jacobian = shared_policy(world, 6)
    z = oracles.scores(world, pf) @ jacobian.reshape(pf.size, -1)
    expected = (oracles.path_probs(world, pf)[:, None] * z).T @ z
    np.testing.assert_allclose(exact_matrix(world.space, policy), expected, atol=1e-12)
    assert np.abs(expected).max() > 0.01


def test_products_with_the_fisher_are_those_of_its_matrix_in_float32():
    world = explore(oracles.WORLDS["grid"])
    tables = random_tables(world, 7)
    policy = Tabular(jnp.asarray(tables.forward, jnp.float32))
    v = np.random.default_rng(0).normal(size=tables.forward.shape)
    product = eqx.filter_jit(lambda space, p, v: Fisher(space, p, EXACT(space, p)).mv(v))
    found = product(world.space, policy, Tabular(jnp.asarray(v, jnp.float32)))
    expected = oracles.trajectory_fisher(world, tables.pf) @ v.ravel()
    np.testing.assert_allclose(np.ravel(found.logits), expected, atol=1e-6)


jitted_blocks = eqx.filter_jit(lambda fisher: fisher.blocks())


@float64
def test_blocks_of_repeated_states_add_up():
    """Visits to the same state are one block, listed as often as there are visits."""
    world = explore(oracles.WORLDS["shortcuts"])
    tables = random_tables(world, 9)
    policy = Tabular(jnp.asarray(tables.forward))
    states = jnp.array([2, 0, 2, world.space.num_inner])
    weights = jnp.array([0.5, 1.0, 0.25, 0.0])
    blocks = jitted_blocks(Fisher(world.space, policy, Occupancy(states, weights)))
    np.testing.assert_array_equal(blocks.states, states)
    np.testing.assert_allclose(blocks.weights[:3], [0.75, 1.0, 0.75])
    np.testing.assert_allclose(blocks.probs[:3], tables.pf[[2, 0, 2]], rtol=1e-12)
    assert blocks.mass is None
    # As many visits as states: the whole table.
    many = Occupancy(jnp.tile(states, 3), jnp.tile(weights, 3))
    whole = jitted_blocks(Fisher(world.space, policy, many))
    np.testing.assert_allclose(whole.weights, [3.0, 0, 2.25, 0, 0, 0])
    np.testing.assert_allclose(whole.probs, tables.pf, rtol=1e-12)


def test_blocks_are_refused_for_shared_parameters():
    world = explore(oracles.WORLDS["shortcuts"])
    policy, _, _ = shared_policy(world, 0)
    fisher = Fisher(world.space, policy, Occupancy(jnp.array([0]), jnp.array([1.0])))
    with pytest.raises(ValueError, match="Features policy shares parameters"):
        fisher.blocks()


def test_parameters_are_flattened_as_the_policy_is():
    """The order of `as_matrix` is that of `ravel_pytree`, on which every solver relies."""
    table = np.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(ravel_pytree(Tabular(jnp.asarray(table)))[0], table.ravel())
