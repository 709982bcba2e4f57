"""Subsets of fixed size: sums over all combinations are the oracle."""

from itertools import combinations
from math import comb, factorial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import float64
from scipy.special import logsumexp

import natgfn as ng
from natgfn import NatgfnError
from natgfn.check import check_environment
from natgfn.envs import AbstractSubsets, HasDistance, KnowsLogZ, Subset, Subsets
from natgfn.statespace import enumerate_states, log_path_counts
from natgfn.training import describe, read_settings, setup_from

PAIRS = ((0, 1, 2.0), (3, 1, -1.0), (4, 0, 0.5), (1, 0, 0.25))
WEIGHTS = (0.3, -1.0, 2.0, 0.0, 0.7)


def log_reward(env: Subsets, items) -> float:
    """Item by item, and pair by pair."""
    pairs = sum(v for i, j, v in env.pairs if {i, j} <= set(items))
    return sum(env.log_weights[i] for i in items) + pairs


def subset(env: Subsets, items) -> Subset:
    return Subset(jnp.zeros(env.num_actions, bool).at[jnp.array(items, int)].set(True))


@pytest.mark.parametrize("env", [Subsets(WEIGHTS, 3, PAIRS), Subsets(WEIGHTS, 5)])
def test_subsets_are_sound_and_counted(env):
    space, n, k = enumerate_states(env), env.num_actions, env.size
    assert space.num_states == sum(comb(n, chosen) for chosen in range(k + 1))
    assert space.num_terminal == comb(n, k)
    counts = np.exp(np.asarray(log_path_counts(space))[space.num_inner :])
    np.testing.assert_allclose(counts, factorial(k), rtol=1e-5)
    assert all(finding.ok is not False for finding in check_environment(env))


@float64
def test_rewards_are_sums_over_items_and_pairs():
    env = Subsets(WEIGHTS, 3, PAIRS)
    members = np.asarray(env.objects().members)
    found = jax.vmap(env.log_reward)(env.objects())
    expected = [log_reward(env, items) for items in combinations(range(5), 3)]
    np.testing.assert_array_equal([np.flatnonzero(row).tolist() for row in members],
                                  list(combinations(range(5), 3)))  # fmt: skip
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    for items in ((), (1,), (0, 1)):
        partial = env.log_partial(subset(env, items))
        assert float(partial) == pytest.approx(log_reward(env, items), abs=1e-14)


@given(st.lists(st.floats(-800, 800), min_size=1, max_size=8), st.data())
def test_log_z_is_the_sum_over_all_combinations(weights, data):
    """Also where the weights themselves would overflow."""
    env = Subsets(tuple(weights), data.draw(st.integers(1, len(weights))))
    every = [log_reward(env, items) for items in combinations(range(len(weights)), env.size)]
    assert env.log_z == pytest.approx(logsumexp(every), rel=1e-12, abs=1e-9)


def test_log_z_of_equal_items_counts_the_subsets():
    env = Subsets((0.0,) * 200, 50)
    assert env.log_z == pytest.approx(np.log(float(comb(200, 50))), rel=1e-12)
    assert isinstance(env, KnowsLogZ)
    assert Subsets(WEIGHTS, 2, PAIRS).log_z is None


def test_the_distance_counts_items_that_are_not_shared():
    env = Subsets(WEIGHTS, 3)
    assert isinstance(env, HasDistance)
    one, other = subset(env, (0, 1, 2)), subset(env, (0, 3, 4))
    assert float(env.distance(one, other)) == float(env.distance(other, one)) == 2
    assert float(env.distance(one, one)) == 0


def test_a_reward_of_your_own_is_a_subclass():
    class Spread(AbstractSubsets):
        """Three of six items, in proportion to the exponential of how far apart they are."""

        @property
        def num_actions(self) -> int:
            return 6

        @property
        def max_steps(self) -> int:
            return 3

        def log_reward(self, state):
            items = jnp.arange(6)
            first = jnp.min(jnp.where(state.members, items, 6))
            return (jnp.max(jnp.where(state.members, items, -1)) - first).astype(float)

    env = Spread()
    assert enumerate_states(env).num_terminal == comb(6, 3)
    expected = [items[-1] - items[0] for items in combinations(range(6), 3)]
    np.testing.assert_array_equal(jax.vmap(env.log_reward)(env.objects()), expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Subsets(()), "log_weights must have a number for each item, got none"),
        (lambda: Subsets(WEIGHTS, 0), "size must be at least 1, got 0"),
        (lambda: Subsets(WEIGHTS, 6), "size must be at most 5, got 6"),
        (lambda: Subsets((0.0, float("nan")), 1), "must be finite"),
        (lambda: Subsets(WEIGHTS, 2, ((0, 1, float("inf")),)), "must be finite"),
        (lambda: Subsets(WEIGHTS, 2, ((0, 5, 1.0),)), "an item of pairs must be at most 4, got 5"),
        (lambda: Subsets(WEIGHTS, 2, ((-1, 0, 1.0),)), "an item of pairs must be at least 0"),
        (lambda: Subsets(WEIGHTS, 2, ((2, 2, 1.0),)), "two different items, got 2 twice"),
        (lambda: Subsets((0.0,) * 60, 30).objects(), "1,048,576 subsets can be listed: 30 of 60"),
    ],
)
def test_bad_fields_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_subsets_can_be_configured_and_described():
    settings = ["env=subsets", "env.log_weights=[0.0, 1, 2.5]", "env.size=2", "env.pairs=[[0,1,3]]"]
    env = setup_from(read_settings(None, settings)).env
    assert env == Subsets((0.0, 1.0, 2.5), 2, ((0, 1, 3.0),))
    assert setup_from({"env": describe(env)}).env == env
    with pytest.raises(NatgfnError, match=r"env\.pairs"):
        setup_from(read_settings(None, ["env=subsets", "env.pairs=[[0,1]]"]))


@pytest.mark.slow
def test_training_finds_the_law():
    run = ng.train(Subsets(WEIGHTS, 2, PAIRS), updates=60, batch=64, progress=False)
    assert run.metrics["kl"][-1] < 0.01 < run.metrics["kl"][0]
