"""Trajectories, their laws, and the weights between these."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from oracles import Path, explore, facts, float64, make_flow, on_batch, random_tables
from scipy import stats

import natgfn as ng
from natgfn.algorithm import advance_one, of_seed
from natgfn.optim import Adam
from natgfn.policies import AbstractPolicy, Tabular
from natgfn.sampling import OnPolicy, UniformMixture, Weighting, log_probs, rollout
from natgfn.sampling.trajectories import invert_cdf
from natgfn.training import Setup, decide

draw = eqx.filter_jit(rollout)


def drawn_paths(paths) -> list[Path]:
    """Trajectories of an enumerated space, without their padding."""
    states, actions = np.asarray(paths.states), np.asarray(paths.actions)
    return [
        Path(tuple(states[: n + 1, i].tolist()), tuple(actions[:n, i].tolist()))
        for i, n in enumerate(np.asarray(paths.lengths))
    ]


@pytest.fixture(scope="module")
def sample(world):
    """Many trajectories of a random policy, and of its mixture with the uniform one."""
    tables = random_tables(world, 1)
    policy = Tabular(jnp.asarray(tables.forward, jnp.float32))
    return tables, {
        law: draw(world.space, policy, law, 4096, key=jax.random.key(7))
        for law in (OnPolicy(), UniformMixture(0.5))
    }


def test_rollouts_are_trajectories_of_the_environment(world, sample):
    for paths in sample[1].values():
        assert set(drawn_paths(paths)) <= set(world.paths)


def test_padding_repeats_the_terminal_state_after_the_last_step(world, sample):
    paths = sample[1][OnPolicy()]
    states, live = np.asarray(paths.states), np.asarray(paths.live)
    lengths = np.asarray(paths.lengths)
    assert np.all(np.diff(live.astype(int), axis=0) <= 0)
    assert np.all(states[-1] >= world.space.num_inner)
    for t in range(len(live)):
        assert np.all((states[t] < world.space.num_inner) == live[t])
        np.testing.assert_array_equal(states[t + 1][~live[t]], states[t][~live[t]])
    np.testing.assert_array_equal(lengths, live.sum(0))
    np.testing.assert_array_equal(paths.before, states[:-1])
    np.testing.assert_array_equal(paths.after, states[1:])
    np.testing.assert_array_equal(paths.last, states[-1])


@pytest.mark.parametrize("law", [OnPolicy(), UniformMixture(0.5)], ids=["on policy", "mixture"])
def test_trajectories_are_drawn_with_their_probability(world, sample, law):
    """`eq:traj_law_main`, by a chi-square test over all trajectories."""
    tables, drawn = sample
    pf = tables.pf
    if isinstance(law, UniformMixture):
        uniform = world.forward_valid / world.forward_valid.sum(1, keepdims=True)
        pf = 0.5 * pf + 0.5 * uniform
    expected = 4096 * oracles.path_probs(world, pf)
    place = {path: i for i, path in enumerate(world.paths)}
    counts = np.bincount([place[p] for p in drawn_paths(drawn[law])], minlength=len(place))
    rare = expected < 5
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    assert stats.chisquare(counts, expected).pvalue > 1e-3


class CellLogits(AbstractPolicy):
    """A policy on the states of the environment itself, not on numbers."""

    weights: jax.Array

    def __call__(self, state):
        return self.weights @ jnp.append(state.cell, 1.0)


def test_rollouts_need_no_enumeration():
    env = ng.envs.Hypergrid(side=3)
    policy = CellLogits(jnp.array([[0.5, -0.2, 0.1], [-0.4, 0.3, 0.2], [0.2, 0.1, -0.5]]))
    paths = draw(env, policy, OnPolicy(), 64, key=jax.random.key(0))
    cells, stopped = np.asarray(paths.states.cell), np.asarray(paths.states.stopped)
    assert stopped[-1].all()
    moves = np.where(np.asarray(paths.live), np.asarray(paths.actions), -1)
    for axis in range(2):
        np.testing.assert_array_equal(cells[-1, :, axis], (moves == axis).sum(0))
    assert cells.max() == 2


def test_a_key_determines_the_trajectories():
    world = explore(oracles.WORLDS["grid"])
    policy = Tabular.forward(world.space)
    one, same, other = (
        draw(world.space, policy, OnPolicy(), 64, key=jax.random.key(k)) for k in (1, 1, 2)
    )
    np.testing.assert_array_equal(one.states, same.states)
    assert not np.array_equal(one.states, other.states)


invert = jax.jit(invert_cdf)


def probabilities(actions):
    entries = st.one_of(st.just(0.0), st.floats(2.0**-40, 1.0, width=32))
    return hnp.arrays(np.float32, (8, actions), elements=entries)


@pytest.mark.parametrize("actions", [3, 9, 40])
@given(st.data())
def test_an_action_of_probability_zero_is_never_drawn(actions, data):
    """Also for the least and the greatest number that JAX draws, and at the jumps of the CDF."""
    p = data.draw(probabilities(actions))
    p[np.arange(8), data.draw(hnp.arrays(int, 8, elements=st.integers(0, actions - 1)))] = 0.25
    p = p / p.sum(1, keepdims=True)
    ulp = 2.0**-23
    cdf = np.cumsum(p, axis=1, dtype=np.float32)
    jump = data.draw(st.integers(0, actions - 1))
    near = np.round(cdf[:, jump] / cdf[:, -1] / ulp) * ulp
    for uniform in (0 * near, 0 * near + 1 - ulp, near - ulp, near, near + ulp):
        u = np.clip(uniform, 0, 1 - ulp).astype(np.float32)
        action = np.asarray(invert(jnp.asarray(p), jnp.asarray(u)))
        assert np.all(p[np.arange(8), action] > 0)


@given(hnp.arrays(np.float64, (8, 4), elements=st.floats(0.01, 1)), st.integers(0, 2**31))
@float64
def test_inverting_the_cdf_is_numpys_searchsorted(p, seed):
    p = p / p.sum(1, keepdims=True)
    u = np.random.default_rng(seed).random(8)
    expected = [np.searchsorted(np.cumsum(row), x, side="right") for row, x in zip(p, u)]  # noqa: B905
    np.testing.assert_array_equal(invert(jnp.asarray(p), jnp.asarray(u)), expected)


@float64
def test_log_probs_are_those_of_each_step_and_trajectory(world):
    tables = random_tables(world, 2)
    paths = oracles.as_trajectories(world)
    found = eqx.filter_jit(log_probs)(world.space, make_flow(tables), paths)
    np.testing.assert_allclose(found.forward, world.sum_taken(tables.log_pf), rtol=1e-12)
    np.testing.assert_allclose(found.backward, world.sum_arrived(tables.log_pb), atol=1e-12)
    actions, steps = np.asarray(found.actions), np.asarray(found.steps)
    for i, path in enumerate(world.paths):
        for t, (state, action) in enumerate(zip(path.states, path.actions, strict=False)):
            np.testing.assert_allclose(actions[t, i], tables.log_pf[state], atol=1e-12)
            assert steps[t, i] == pytest.approx(tables.log_pf[state, action], abs=1e-12)
        assert not np.any(steps[len(path.actions) :, i])
        assert not np.any(actions[len(path.actions) :, i])


# Proposals and weights.

mix = eqx.filter_jit(lambda law, log_pf, mask: law(log_pf, mask))


@given(
    hnp.arrays(np.float64, (5, 4), elements=st.floats(-5, 5)),
    hnp.arrays(bool, (5, 4)),
    st.sampled_from([0.0, 0.3, 1.0]),
)
@float64
def test_a_uniform_mixture_mixes_over_the_valid_actions(logits, mask, epsilon):
    mask[0] = False
    log_pf = oracles.log_softmax(logits, mask)
    found = np.exp(mix(UniformMixture(epsilon), jnp.asarray(log_pf), jnp.asarray(mask)))
    count = np.maximum(mask.sum(1, keepdims=True), 1)
    expected = (1 - epsilon) * np.exp(log_pf) + epsilon * mask / count
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(("step", "left"), [(0, 0.4), (5, 0.2), (10, 0.0), (30, 0.0)])
def test_a_mixture_can_fade(step, left):
    log_pf, mask = jnp.log(jnp.array([[0.7, 0.2, 0.1]])), jnp.ones((1, 3), bool)
    now = UniformMixture(0.4, fade=10).at(jnp.array(step))
    np.testing.assert_allclose(now(log_pf, mask), UniformMixture(left)(log_pf, mask), rtol=1e-6)
    assert UniformMixture(0.4).at(jnp.array(step)) == UniformMixture(0.4)


def test_training_draws_from_a_mixture_that_has_faded():
    """The last updates are those on policy, and the first ones are not."""
    flows = {}
    for name, law in {"faded": UniformMixture(0.9, fade=4), "on policy": OnPolicy()}.items():
        setup, _ = decide(Setup(ng.envs.Triangles(nodes=3), Adam(), proposal=law, batch=8))
        for step in (0, 4):
            start = of_seed(setup.start(), 0)
            logits = start.flow.forward.logits.at[:, 0].add(3.0)
            parts = lambda s: [s.step, s.flow.forward.logits]  # noqa: E731
            state = eqx.tree_at(parts, start, [jnp.array(step), logits])
            flows[name, step], _ = advance_one(setup.algorithm(), state, jnp.array(1))
    logits = {key: np.asarray(state.flow.forward.logits) for key, state in flows.items()}
    np.testing.assert_array_equal(logits["faded", 4], logits["on policy", 4])
    assert np.any(logits["faded", 0] != logits["on policy", 0])


def test_epsilon_must_be_a_probability():
    with pytest.raises(ValueError, match="fade must be at least 1, got 0"):
        UniformMixture(0.1, fade=0)
    for epsilon in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="epsilon must be from 0 to 1"):
            UniformMixture(epsilon)


def test_weights_are_clipped_and_normalised_as_told():
    log_ratio = jnp.log(jnp.array([1.0, 3.0, 8.0]))
    np.testing.assert_allclose(Weighting()(log_ratio), [1, 3, 8], rtol=1e-6)
    np.testing.assert_allclose(Weighting(clip=2.5)(log_ratio), [1, 2.5, 2.5], rtol=1e-6)
    np.testing.assert_allclose(
        Weighting(self_normalise=True)(log_ratio), [0.25, 0.75, 2], rtol=1e-6
    )
    np.testing.assert_allclose(
        Weighting(clip=1.5, self_normalise=True)(log_ratio), [0.25, 0.75, 1.5], rtol=1e-6
    )
    with pytest.raises(ValueError, match="clip must be positive, got 0"):
        Weighting(clip=0.0)


def test_self_normalised_weights_do_not_overflow():
    weights = Weighting(self_normalise=True)(jnp.array([500.0, 500.0, 0.0, -500.0]))
    np.testing.assert_allclose(weights, [2, 2, 0, 0], rtol=1e-6)


@float64
def test_importance_weights_turn_means_under_the_proposal_into_those_under_the_reference(world):
    r"""$E_\mu[w f] = E_\nu[f]$ and $E_\mu[\omega f] = E_q[f]$, over all trajectories."""
    tables = random_tables(world, 3)
    uniform = world.forward_valid / world.forward_valid.sum(1, keepdims=True)
    flow, laws = make_flow(tables), {"proposal": UniformMixture(0.4)}
    batch = on_batch(world, flow, facts, reference=UniformMixture(0.1), **laws)
    mu = oracles.path_probs(world, 0.6 * tables.pf + 0.4 * uniform)
    nu = oracles.path_probs(world, 0.9 * tables.pf + 0.1 * uniform)
    np.testing.assert_allclose(mu * batch.weights, nu, rtol=1e-11)
    np.testing.assert_allclose(mu * batch.omega, oracles.path_probs(world, tables.pf), rtol=1e-11)


@float64
def test_without_a_reference_the_objective_is_that_of_the_proposal():
    world = explore(oracles.WORLDS["shortcuts"])
    flow = make_flow(random_tables(world, 4))
    batch = on_batch(world, flow, facts, proposal=UniformMixture(0.4))
    np.testing.assert_array_equal(batch.weights, 1.0)
    assert np.ptp(batch.omega) > 0.01
    on_policy = on_batch(world, flow, facts)
    np.testing.assert_allclose(on_policy.omega, 1.0, rtol=1e-12)
