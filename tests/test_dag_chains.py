"""Chains over root partitions: their law, against all of them, and what they say of themselves."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import float64
from test_dag_candidates import brute, layers_of
from test_dag_scores import continuous

from natgfn.dag import BGe, Prior, chains, exact_posterior
from natgfn.dag.candidates import Candidates, Weights
from natgfn.dag.mcmc import (
    ChainPosterior,
    Ladders,
    _each,
    _exchange,
    _steps,
    edge_probabilities,
)


def small(number: int | None = None, seed: int = 0, prior: Prior = Prior()) -> Candidates:
    return Candidates.of(Weights.of(continuous(30, 4, seed), BGe(), prior), number)


@float64
def test_proposals_are_as_likely_back_as_there():
    """At power zero the law is uniform over the 75 partitions of four vertices."""
    env, count = small().env, 3_000
    layer = jnp.zeros((count, 1, 4), jnp.int8)
    state = Ladders(layer, _each(env, layer), jax.random.key_data(jax.random.key(0)))
    state, _ = jax.jit(lambda s: _steps(env, jnp.zeros(1), s, 60))(state)
    found, times = np.unique(np.asarray(state.layer[:, 0]), axis=0, return_counts=True)
    assert len(found) == 75
    assert np.sum((times - count / 75) ** 2 / (count / 75)) < 74 + 5 * np.sqrt(2 * 74)


@float64
def test_probabilities_of_edges_given_a_partition():
    found = small(2)
    env = found.env
    probabilities = jax.jit(lambda layer: edge_probabilities(env, layer))
    graphs, logs = brute(found)
    layers = np.array([layers_of(graph) for graph in graphs])
    for partition in ([0, 1, 1, 2], [2, 0, 1, 0], [0, 0, 0, 0], [3, 1, 0, 2]):
        inside = np.all(layers == partition, axis=1)
        weights = np.exp(logs[inside] - logs[inside].max())
        expected = np.einsum("n,nij->ij", weights / weights.sum(), graphs[inside])
        result = probabilities(jnp.array(partition, jnp.int8))
        np.testing.assert_allclose(result, expected, atol=1e-9)


@float64
def test_exchanges_keep_the_law_of_both():
    """Two chains of three states each, at powers 1 and 0.4: the joint law is left as it was."""
    logs, powers = np.array([0.0, 1.0, -0.7]), np.array([1.0, 0.4])
    laws = [np.exp(p * logs) / np.exp(p * logs).sum() for p in powers]
    count = 60_000
    rng = np.random.default_rng(0)
    drawn = np.stack([rng.choice(3, count, p=law) for law in laws], axis=1)
    layer = jnp.asarray(drawn[..., None], jnp.int8)
    state = Ladders(layer, jnp.asarray(logs[drawn]), jax.random.key_data(jax.random.key(1)))
    state, share = _exchange(jnp.asarray(powers), state, 0)
    after = np.asarray(state.layer[..., 0])
    np.testing.assert_allclose(logs[after], state.log_weight)
    assert 0.3 < float(share[0]) < 1
    for rung, law in enumerate(laws):
        np.testing.assert_allclose(np.bincount(after[:, rung]) / count, law, atol=0.01)
    assert _exchange(jnp.asarray(powers), state, 1)[1].tolist() == [0]


@pytest.fixture(scope="module")
def found() -> ChainPosterior:
    prior = Prior(require=[("X0", "X2")], forbid=[("X3", "X1")])
    return chains(
        continuous(30, 4, 2),
        prior=prior,
        candidates=2,
        sweeps=6_000,
        ladders=6,
        rungs=3,
        progress=False,
    )


def test_chains_end_in_the_posterior(found: ChainPosterior):
    graphs, logs = brute(found.candidates)
    weights = np.exp(logs - logs.max())
    expected = np.einsum("n,nij->ij", weights / weights.sum(), graphs)
    np.testing.assert_allclose(found.edge_marginals, expected, atol=0.02)
    drawn = found.sample(3_000)
    np.testing.assert_allclose(drawn.mean(axis=0), expected, atol=0.04)
    assert drawn[:, 0, 2].all()
    assert not drawn[:, 3, 1].any()
    best, share = found.top(1)
    most = np.argmax(weights)
    assert share[0] == pytest.approx(weights[most] / weights.sum(), abs=0.04)
    np.testing.assert_allclose(logs[np.all(graphs == best[0], axis=(1, 2))], logs[most])


def test_chains_say_how_they_did(found: ChainPosterior):
    quality = found.quality()
    assert 1 <= quality["largest_r_hat"] < 1.05
    assert 0 < quality["largest_error_of_an_edge"] < 0.02
    assert 0.1 < quality["smallest_swap_rate"] < 1
    assert quality["missed_weight"] == 0  # of three others, two candidates and any one are all
    assert quality["steps"] == 6000 * 4


def test_r_hat_notices_ladders_that_disagree(found: ChainPosterior):
    edges = found.edges.copy()
    edges[0, :, 1, 0] = 0.9
    edges[1:, :, 1, 0] = 0.1
    squares = edges**2 + 0.01
    stuck = replace(found, edges=edges, squares=squares)
    assert stuck.r_hat.loc["X1", "X0"] > 2
    assert stuck.r_hat.loc["X2", "X0"] < 1.2


def test_the_same_seed_gives_the_same_chains():
    one, same, other = (
        chains(continuous(30, 3), sweeps=256, ladders=2, rungs=2, seed=seed, progress=False)
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one.layers, same.layers)
    assert (one.layers != other.layers).any()


@pytest.mark.slow
@pytest.mark.trains
def test_eight_variables_against_the_exact_posterior():
    data = continuous(200, 8, 1)
    exact = exact_posterior(data).edge_marginals.to_numpy()
    found = chains(data, sweeps=4_000, progress=False)
    assert np.abs(found.edge_marginals.to_numpy() - exact).max() < 0.01


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"minutes": 0.0}, "minutes must be positive"),
        ({"sweeps": 0}, "sweeps must be at least 1"),
        ({"ladders": 1}, "ladders must be at least 2"),
        ({"candidates": 0}, "candidates must be at least 1"),
    ],
)
def test_bad_arguments(wrong: dict, message: str):
    with pytest.raises(ValueError, match=message):
        chains(continuous(30, 3), progress=False, **wrong)
