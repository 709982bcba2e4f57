"""Policies: masks, normalisation, and backward policies that are given."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from oracles import explore, float64, random_tables

from natgfn.policies import (
    PathCount,
    Tabular,
    Uniform,
    backward_table,
    forward_probs,
    forward_table,
    masked_log_softmax,
    masked_softmax,
)

forward_table = eqx.filter_jit(forward_table)
forward_probs = eqx.filter_jit(forward_probs)
backward_table = eqx.filter_jit(backward_table)
path_count = eqx.filter_jit(PathCount().backward)

SHAPE = (6, 5)
logits = hnp.arrays(np.float64, SHAPE, elements=st.floats(-700, 700))
masks = hnp.arrays(bool, SHAPE)
log_softmax = jax.jit(masked_log_softmax)
softmax = jax.jit(masked_softmax)


@given(logits, masks)
@float64
def test_masked_log_softmax_is_the_softmax_of_the_valid_entries(x, mask):
    found = np.asarray(log_softmax(jnp.asarray(x), jnp.asarray(mask)))
    for row, values, valid in zip(found, x, mask, strict=True):
        assert np.all(row[~valid] == -np.inf)
        if valid.any():
            top = values[valid].max()
            exact = values[valid] - top - np.log(np.exp(values[valid] - top).sum())
            np.testing.assert_allclose(row[valid], exact, rtol=1e-12, atol=1e-12)


@given(logits, masks)
@float64
def test_masked_softmax_is_the_exponential_of_masked_log_softmax(x, mask):
    """Also in rows without a valid action, which are zero."""
    mask[0] = False
    probs = np.asarray(softmax(jnp.asarray(x), jnp.asarray(mask)))
    expected = np.exp(log_softmax(jnp.asarray(x), jnp.asarray(mask)))
    np.testing.assert_allclose(probs, expected, rtol=1e-11, atol=1e-300)
    np.testing.assert_allclose(probs.sum(1), mask.any(1), rtol=1e-12)


def test_masked_softmax_of_huge_logits_is_exact_in_float32():
    x = jnp.array([[1e30, 1e30, -1e30], [-1e30, -1e30, 3e38], [200.0, 100.0, 0.0]])
    probs = softmax(x, jnp.array([[True, True, True], [True, True, False], [True, True, True]]))
    np.testing.assert_allclose(probs, [[0.5, 0.5, 0], [0.5, 0.5, 0], [1, 0, 0]], atol=1e-30)


score = jax.jit(
    jax.jacobian(lambda x, mask: jnp.where(mask, masked_log_softmax(x, mask), 0.0)),
)


@given(logits, masks)
@float64
def test_the_gradient_of_masked_log_softmax_is_the_score(x, mask):
    r"""$\partial \log \pi_a / \partial \theta = e_a - \pi$, finite also where nothing is valid."""
    mask[0] = False
    found = np.asarray(score(jnp.asarray(x), jnp.asarray(mask)))
    probs = np.asarray(softmax(jnp.asarray(x), jnp.asarray(mask)))
    expected = np.zeros(SHAPE + SHAPE)
    for s, a in zip(*np.nonzero(mask), strict=True):
        expected[s, a, s] = np.eye(SHAPE[1])[a] - probs[s]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@float64
def test_tables_are_the_policies_evaluated_in_every_state(world):
    tables = random_tables(world, 1)
    forward, backward = Tabular(jnp.asarray(tables.forward)), Tabular(jnp.asarray(tables.backward))
    np.testing.assert_allclose(forward_table(world.space, forward), tables.log_pf, atol=1e-12)
    np.testing.assert_allclose(forward_probs(world.space, forward), tables.pf, rtol=1e-12)
    np.testing.assert_allclose(backward_table(world.space, backward), tables.log_pb, atol=1e-12)


def test_fresh_tables_and_uniform_give_every_valid_action_the_same_probability(world):
    forward = np.exp(forward_table(world.space, Tabular.forward(world.space)))
    count = world.forward_valid.sum(1, keepdims=True)
    np.testing.assert_allclose(forward, world.forward_valid / count, rtol=1e-6)
    expected = np.exp(oracles.uniform_backward(world))
    for policy in (Tabular.backward(world.space), Uniform().backward(world.space)):
        found = np.exp(backward_table(world.space, policy))
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@float64
def test_path_count_gives_every_trajectory_into_an_object_the_same_probability(world):
    log_pb = np.asarray(backward_table(world.space, path_count(world.space)))
    paths_into = world.ends.sum(0)[world.ends.argmax(1)]
    np.testing.assert_allclose(np.exp(world.sum_arrived(log_pb)), 1 / paths_into, rtol=1e-12)


@pytest.mark.parametrize("name", ["shortcuts", "grid"])
@float64
def test_path_count_makes_the_most_random_trajectories(name):
    """Of all backward policies, at the same target: the entropy of $P_B(\\tau | x)$ is largest."""
    world = explore(oracles.WORLDS[name])
    target = np.exp(world.log_rewards) / np.exp(world.space.log_rewards).sum()

    def entropy(log_pb):
        q = target * np.exp(world.sum_arrived(np.asarray(log_pb)))
        return -(q * np.log(q)).sum()

    best = entropy(backward_table(world.space, path_count(world.space)))
    for seed in range(5):
        assert entropy(random_tables(world, seed).log_pb) < best - 1e-3


def test_path_count_is_not_trained(world):
    def total(policy):
        return jnp.sum(jax.vmap(policy)(jnp.arange(world.space.num_states)))

    policy = path_count(world.space)
    assert not np.any(jax.jit(jax.grad(total))(policy).log_counts)
