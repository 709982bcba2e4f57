"""What probabilities of edges owe to the rows: against leaving rows out, and against new tables."""

from dataclasses import replace

import numpy as np
import pytest
from test_dag_scores import continuous, discrete

from natgfn.dag import BDeu, BGe, Data, Prior, Stability, Weights, exact_posterior, stability_of
from natgfn.dag.stability import GROUPS

PRIOR = Prior(edge_penalty=0.5)


def edges_of(data: Data, score) -> np.ndarray:
    return exact_posterior(data, score=score, prior=PRIOR).edge_marginals.to_numpy()


def stable(data: Data, score, **options) -> Stability:
    found = exact_posterior(data, score=score, prior=PRIOR)
    weights = Weights.of(data, score, PRIOR)
    return stability_of(found.sample(2_000), found.edge_marginals.to_numpy(), weights, **options)


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_errors_are_those_of_a_jackknife_that_fits_again(kind: str):
    """Every twentieth row is left out in turn, and everything is summed over anew."""
    data, score, groups = continuous(200, 4, 1), BGe(), 20
    if kind == "discrete":
        data, score = discrete(300, [2, 2, 2], 2), BDeu()
        data.values[::6, 2] = data.values[::6, 0]  # a weak dependence
    left = np.arange(len(data.values)) % groups
    again = np.stack([
        edges_of(Data(data.names, data.values[left != g], data.discrete), score)
        for g in range(groups)
    ])  # fmt: skip
    expected = np.sqrt((groups - 1) * again.var(axis=0))
    found = stable(data, score, groups=groups).errors
    assert expected.max() > 0.05
    np.testing.assert_allclose(found, expected, atol=0.04, rtol=0.25)


def test_errors_are_the_spread_among_tables():
    """Of the probability that two variables are joined, whose correlation is weak."""
    rng, score = np.random.default_rng(0), BGe()
    probabilities, errors = [], []
    for _ in range(60):
        values = rng.normal(size=(60, 2))
        values[:, 1] += 0.35 * values[:, 0]
        found = stable(Data(("a", "b"), values), score)
        probabilities.append(found.probabilities[0, 1])
        errors.append(found.errors[0, 1])
    spread = np.std(probabilities)
    assert spread > 0.08
    assert np.mean(errors) == pytest.approx(spread, rel=0.3)


def test_more_rows_are_more_stable():
    data = continuous(2_000, 4, 1)
    few = replace(data, values=data.values[:40])
    few, many = stable(few, BGe()), stable(data, BGe())
    assert many.errors.mean() < few.errors.mean()
    assert set(many.unsure) <= set(many.likely)


def test_a_variable_that_was_nearly_always_set_keeps_its_rows():
    """Without a group, none of its rows would be left."""
    data = continuous(30, 3, 0)
    mask = np.zeros((30, 3), bool)
    mask[1:, 0] = True  # one row tells of the first
    found = stable(replace(data, intervened=mask), BGe(), groups=GROUPS)
    assert np.all(np.isfinite(found.errors))


def test_the_note_counts_edges_near_one_half():
    edges = np.array([[0, 0.9, 0.6], [0.1, 0, 0.2], [0.4, 0.7, 0]])
    errors = np.array([[0, 0.1, 0.15], [0, 0, 0.5], [0.2, 0.1, 0]])
    some = Stability(("a", "b", "c"), edges, errors)
    assert some.likely == [("a", "b"), ("a", "c"), ("c", "b")]
    assert some.unsure == [("a", "c")]
    assert "1 of the 3 edges over one half may not stay so" in str(some)
    assert some.summary()["unsure"] == ["a->c"]
    assert some.summary()["largest_error_of_an_edge"] == 0.5
    assert "all 3 edges" in str(some._replace(errors=errors / 10))
    assert str(some._replace(probabilities=edges / 2)) == "no edge is more probable than not"
