"""Metrics of edge probabilities against sums over graphs, and by hand."""

import sys

import numpy as np
import pytest
from dag_oracles import all_dags, equivalence_class, law, random_weights

from natgfn import NatgfnError
from natgfn.dag import graphs, metrics

DAGS, PROBABILITIES, _ = law(random_weights(4, 1.0, 0))
MARGINALS = np.einsum("n,nij->ij", PROBABILITIES, DAGS)
TRUTH = np.array([[0, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]])


def test_expected_distances_are_means_over_graphs():
    edgewise = np.abs(DAGS - TRUTH).sum(axis=(1, 2))
    assert metrics.expected_shd(MARGINALS, TRUTH) == pytest.approx(PROBABILITIES @ edgewise)
    pairs = [(i, j) for i in range(4) for j in range(i)]
    differs = [(DAGS[:, i, j] != TRUTH[i, j]) | (DAGS[:, j, i] != TRUTH[j, i]) for i, j in pairs]
    once = np.sum(differs, axis=0)
    assert metrics.expected_shd_reversal_once(MARGINALS, TRUTH) == pytest.approx(
        PROBABILITIES @ once
    )
    edges = PROBABILITIES @ DAGS.sum(axis=(1, 2))
    assert metrics.expected_edges(MARGINALS) == pytest.approx(edges)


def test_a_reversed_edge_counts_twice_or_once():
    one, other = np.array([[0, 1], [0, 0]]), np.array([[0, 0], [1, 0]])
    assert metrics.expected_shd(other, one) == 2
    assert metrics.expected_shd_reversal_once(other, one) == 1


def identified(truth: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """Whether each effect is right, in a linear model of the true graph with random numbers.

    By regression on the cause and its ancestors in the guess, or zero without a path there.
    """
    size, rng = len(truth), np.random.default_rng(0)
    effects = np.linalg.inv(np.eye(size) - truth * rng.uniform(0.5, 2, truth.shape))
    covariance = effects.T @ np.diag(rng.uniform(0.5, 2, size)) @ effects
    above = graphs.ancestors(guess)
    right = np.ones((size, size), bool)
    for i, j in zip(*np.nonzero(~np.eye(size, dtype=bool)), strict=True):
        said = 0.0
        if above[i, j]:
            given = [i, *np.flatnonzero(above[:, i])]
            said = np.linalg.solve(covariance[np.ix_(given, given)], covariance[given, j])[0]
        right[i, j] = abs(said - effects[i, j]) < 1e-9
    return right


def test_adjustment_distance_counts_effects_that_are_identified_wrongly():
    rng = np.random.default_rng(1)
    for truth in DAGS[rng.integers(len(DAGS), size=8)]:
        drawn = DAGS[rng.integers(len(DAGS), size=12)]
        wrong = [np.sum(~identified(truth, guess)) for guess in drawn]
        assert metrics.adjustment_distance(drawn, truth) == pytest.approx(np.mean(wrong))
    assert metrics.adjustment_distance(TRUTH[None], TRUTH) == 0


def test_the_package_for_adjustment_distances_is_named_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "gadjid", None)
    with pytest.raises(NatgfnError, match=r"gadjid is not installed: pip install 'natgfn\[dag\]'"):
        metrics.adjustment_distance(TRUTH[None], TRUTH)


def test_areas_by_hand():
    values = np.array([0.9, 0.8, 0.8, 0.3, 0.1])
    positive = np.array([True, True, False, False, True])
    # Steps: 1 of 1, then 2 of 3 for two equals, then 3 of 5.
    assert metrics.average_precision(values, positive) == pytest.approx((1 + 2 / 3 + 3 / 5) / 3)
    # Of six pairs: 0.9 beats both, 0.8 ties one and beats one, 0.1 beats none.
    assert metrics.area_under_roc(values, positive) == pytest.approx((2 + 1.5 + 0) / 6)


def test_perfect_and_reversed_rankings():
    assert metrics.directed_auprc(TRUTH * 0.9, TRUTH) == 1
    assert metrics.directed_auroc(TRUTH * 0.9, TRUTH) == 1
    assert metrics.skeleton_auprc(TRUTH.T * 0.9, TRUTH) == 1
    assert metrics.skeleton_auroc(TRUTH.T * 0.9, TRUTH) == 1
    assert metrics.directed_auroc(1.0 - TRUTH, TRUTH) == 0
    assert metrics.directed_auroc(np.full((4, 4), 0.3), TRUTH) == 0.5
    assert metrics.directed_auprc(np.full((4, 4), 0.3), TRUTH) == pytest.approx(4 / 12)


def test_errors_leave_the_diagonal_out():
    exact = np.zeros((3, 3))
    found = np.diag([9.0, 9.0, 9.0]) + np.array([[0, 0.3, 0], [0, 0, -0.1], [0.2, 0, 0]])
    assert metrics.largest_error(found, exact) == pytest.approx(0.3)
    assert metrics.mean_error(found, exact) == pytest.approx(0.1)


def test_paths_blankets_and_cycles_of_given_graphs():
    chain = np.eye(5, k=1, dtype=int)
    np.testing.assert_array_equal(graphs.ancestors(chain), np.triu(np.ones((5, 5), bool), 1))
    collider = np.array([[0, 0, 1], [0, 0, 1], [0, 0, 0]])
    np.testing.assert_array_equal(graphs.markov_blankets(collider), ~np.eye(3, dtype=bool))
    ring = chain.copy()
    ring[4, 0] = 1
    np.testing.assert_array_equal(graphs.is_acyclic(np.stack([chain, ring])), [True, False])


def test_classes_are_what_brute_force_says():
    """All 543 graphs of four variables in their 185 classes; an edge that all have is one-way."""
    dags = all_dags(4)
    keys = [equivalence_class(graph) for graph in dags]
    patterns = graphs.patterns(dags)
    assert len(np.unique(patterns, axis=0)) == len(set(keys)) == 185
    for key in set(keys):
        inside = np.array([other == key for other in keys])
        assert np.ptp(patterns[inside].astype(int), axis=0).max() == 0
        found = graphs.completed(patterns[inside][0])
        np.testing.assert_array_equal(found, dags[inside].any(axis=0))


def test_the_most_frequent_class_counts_its_graphs_together():
    """Each graph of a chain is rarer than a collider, and all three together are not."""
    chain = np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]])
    fork = np.array([[0, 0, 0], [1, 0, 1], [0, 0, 0]])
    collider = np.array([[0, 1, 0], [0, 0, 0], [0, 1, 0]])
    drawn = np.stack([chain, chain, chain.T, chain.T, fork, collider, collider, collider])
    found, share = graphs.most_frequent_class(drawn)
    np.testing.assert_array_equal(found, (chain + chain.T) > 0)
    assert share == 5 / 8
