"""Causal effects: against Student laws, against the score, and in how often intervals are right."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from dag_oracles import all_dags
from scipy import stats
from test_dag_scores import continuous, discrete

from natgfn import NatgfnError
from natgfn.dag import BDeu, BGe, Data, Prior, effects_of, exact_posterior, load, local_scores
from natgfn.dag.effects import coefficients
from natgfn.dag.graphs import ancestors

CHAIN = np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]])
FULL = np.triu(np.ones((3, 3), int), 1)


def posterior(values: np.ndarray) -> np.ndarray:
    """$R$ of the default BGe, by definition: every row updates it."""
    count = values.shape[1]
    matrix, mean, weight = np.eye(count) / 2, np.zeros(count), 1.0
    for row in values:
        matrix = matrix + weight / (weight + 1) * np.outer(row - mean, row - mean)
        mean, weight = (weight * mean + row) / (weight + 1), weight + 1
    return matrix


def student(
    values: np.ndarray, child: int, parents: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, float]:
    """Location, squared scale and degrees of freedom of the coefficients of a child."""
    matrix, (rows, _) = posterior(values), values.shape
    inside, across = matrix[np.ix_(parents, parents)], matrix[parents, child]
    location = np.linalg.solve(inside, across)
    freedom = 2.0 + rows + len(parents) + 1
    rest = matrix[child, child] - across @ location
    return location, rest / freedom * np.linalg.inv(inside), freedom


def test_the_effect_of_one_variable_on_another_is_a_student_law():
    """In the units of the table: the deviations of its columns are 3 and 0.2."""
    rng = np.random.default_rng(0)
    cause = 5 + 3 * rng.normal(size=6)
    table = np.stack([cause, 0.05 * cause + 0.1 * rng.normal(size=6)], axis=1)
    data = load(table)
    unit = table[:, 1].std() / table[:, 0].std()
    location, scale, freedom = student(data.values, 1, [0])
    law = stats.t(freedom, location[0] * unit, np.sqrt(scale[0, 0]) * unit)
    found = effects_of(np.tile(np.array([[0, 1], [0, 0]]), (60_000, 1, 1)), data)
    near = {"rel": 0, "abs": 0.03 * law.std()}
    assert found.mean.loc["X0", "X1"] == pytest.approx(law.mean(), **near)
    assert found.low.loc["X0", "X1"] == pytest.approx(law.ppf(0.05), **near)
    assert found.high.loc["X0", "X1"] == pytest.approx(law.ppf(0.95), **near)
    assert found.probability.loc["X0", "X1"] == 1
    for frame in found:
        assert frame.loc["X1", "X0"] == frame.loc["X0", "X0"] == 0


def test_no_path_is_exactly_no_effect():
    """In any order of the variables, whatever the rounding of an inverse."""
    dags, data = all_dags(4), continuous(20, 4, 6)
    found = effects_of(dags, data)
    for number in (17, 300, 542):
        one = effects_of(np.tile(dags[number], (3, 1, 1)), data)
        np.testing.assert_array_equal(one.mean.to_numpy() != 0, ancestors(dags[number]))
    paths = ancestors(dags).mean(axis=0)
    np.testing.assert_array_equal(found.probability, paths)


def test_graphs_without_a_path_count_as_no_effect():
    data = continuous(40, 2)
    there = np.array([[0, 1], [0, 0]])
    graphs = np.stack([there] * 30_000 + [0 * there] * 10_000)
    location, scale, freedom = student(data.values, 1, [0])
    law = stats.t(freedom, location[0], np.sqrt(scale[0, 0]))
    found = effects_of(graphs, data)
    assert found.probability.loc["X0", "X1"] == 0.75
    assert found.mean.loc["X0", "X1"] == pytest.approx(0.75 * law.mean(), abs=0.03 * law.std())
    far, near = (found.low, found.high) if law.mean() < 0 else (found.high, found.low)
    assert near.loc["X0", "X1"] == 0
    beyond = law.ppf(0.05 / 0.75) if law.mean() < 0 else law.ppf(1 - 0.05 / 0.75)
    assert far.loc["X0", "X1"] == pytest.approx(beyond, abs=0.03 * law.std())


def test_three_variables_in_closed_form():
    data, count = continuous(12, 3, 4), 40_000
    first, first_scale, freedom = student(data.values, 1, [0])
    both, both_scale, both_freedom = student(data.values, 2, [0, 1])
    drawn = coefficients(np.tile(FULL, (count, 1, 1)), data, BGe(), np.random.default_rng(0))
    expected = both_freedom / (both_freedom - 2) * both_scale
    deviation = np.sqrt(np.diag(expected))
    np.testing.assert_allclose(drawn[:, :2, 2].mean(axis=0), both, atol=0.03 * deviation.min())
    np.testing.assert_allclose(np.cov(drawn[:, :2, 2].T), expected, rtol=0.05)
    assert not drawn[:, ~FULL.astype(bool)].any()
    # Along both paths; coefficients of different children are independent.
    found = effects_of(np.tile(FULL, (count, 1, 1)), data)
    total = both[0] + first[0] * both[1]
    assert found.mean.loc["X0", "X2"] == pytest.approx(total, abs=0.03 * deviation.sum())
    # Along the chain: the product of two independent Student variables.
    second, second_scale, second_freedom = student(data.values, 2, [1])
    rng = np.random.default_rng(1)
    one = first[0] + np.sqrt(first_scale[0, 0]) * rng.standard_t(freedom, 100_000)
    two = second[0] + np.sqrt(second_scale[0, 0]) * rng.standard_t(second_freedom, 100_000)
    along, near = effects_of(np.tile(CHAIN, (count, 1, 1)), data), 0.03 * np.std(one * two)
    assert along.mean.loc["X0", "X2"] == pytest.approx(first[0] * second[0], abs=near)
    assert along.low.loc["X0", "X2"] == pytest.approx(np.quantile(one * two, 0.05), abs=near)
    assert along.high.loc["X0", "X2"] == pytest.approx(np.quantile(one * two, 0.95), abs=near)


@pytest.mark.parametrize("parents", [[], [1], [0, 1]])
def test_the_law_of_coefficients_is_that_of_the_score(parents: list[int]):
    """Likelihood times prior over posterior is the score, at any coefficients and noise."""
    data, child = continuous(9, 3, 5), 2
    x = data.values
    rng = np.random.default_rng(0)
    slopes, start, noise = rng.normal(size=len(parents)), rng.normal(), rng.uniform(0.5, 2)

    def log_law(values: np.ndarray) -> float:
        """Of the slopes, the intercept and the noise, after these rows."""
        n, mean = len(values), values.sum(axis=0) / (len(values) + 1)
        matrix = posterior(values)
        inside, across = matrix[np.ix_(parents, parents)], matrix[parents, child]
        location = np.linalg.solve(inside, across)
        rest, freedom = matrix[child, child] - across @ location, 2.0 + n + len(parents) + 1
        total = stats.invgamma.logpdf(noise, freedom / 2, scale=rest / 2)
        middle = mean[child] - slopes @ mean[parents]
        total += stats.norm.logpdf(start, middle, np.sqrt(noise / (1 + n)))
        if parents:
            spread = noise * np.linalg.inv(inside)
            total += stats.multivariate_normal.logpdf(slopes, location, spread)
        return float(total)

    fit = stats.norm.logpdf(x[:, child], start + x[:, parents] @ slopes, np.sqrt(noise)).sum()
    score = local_scores(BGe(), data)[child, sum(1 << p for p in parents)]
    assert fit + log_law(x[:0]) - log_law(x) == pytest.approx(score, abs=1e-9)


def simulate(graph: np.ndarray, rows: int, rng: np.random.Generator) -> tuple[Data, np.ndarray]:
    """A table from the prior of the default BGe, and the effects that it was made with."""
    size = len(graph)
    noise = 0.5 / rng.chisquare(3.0 + graph.sum(axis=0))
    slopes = graph * rng.normal(size=graph.shape) * np.sqrt(noise / 0.5)
    total = np.linalg.inv(np.eye(size) - slopes)
    mean, *deviations = (rng.normal(size=(rows + 1, size)) * np.sqrt(noise)) @ total
    names = tuple(f"X{i}" for i in range(size))
    return Data(names, mean + np.array(deviations)), np.where(ancestors(graph), total, 0)


@pytest.mark.slow
def test_intervals_of_a_known_graph_are_right_nine_times_in_ten():
    rng, inside = np.random.default_rng(0), []
    for number in range(200):
        data, truth = simulate(FULL, 20, rng)
        found = effects_of(np.tile(FULL, (500, 1, 1)), data, seed=number)
        inside.append((found.low.to_numpy() < truth) & (truth < found.high.to_numpy()))
    shares = np.mean(inside, axis=0)[FULL > 0]
    np.testing.assert_allclose(shares, 0.9, atol=3 * np.sqrt(0.09 / 200))
    assert np.mean(shares) == pytest.approx(0.9, abs=0.04)


@pytest.mark.slow
def test_intervals_and_probabilities_of_unknown_graphs_are_right():
    """Where zero has a probability of its own, an interval may be right more often."""
    rng, dags, inside, apart, wrong = np.random.default_rng(1), all_dags(3), [], [], []
    for number in range(200):
        data, truth = simulate(dags[rng.integers(len(dags))], 20, rng)
        found = exact_posterior(data).effects(data, samples=500, seed=number)
        inside.append((found.low.to_numpy() <= truth) & (truth <= found.high.to_numpy()))
        probability = found.probability.to_numpy()
        apart.append((truth != 0) - probability)
        wrong.append(probability * (1 - probability))
    pairs = ~np.eye(3, dtype=bool)
    assert 0.88 < np.mean(inside, axis=0)[pairs].mean() < 0.99
    # Each difference has mean zero and the variance p (1 - p).
    z = np.sum(apart, axis=0) / np.sqrt(np.sum(wrong, axis=0) + ~pairs)
    assert np.abs(z).max() < 3.5


def test_effects_of_a_posterior_in_one_table():
    rng = np.random.default_rng(3)
    a = rng.normal(size=200)
    table = pd.DataFrame({"a": a, "b": 2 * a + rng.normal(size=200), "c": rng.normal(size=200)})
    data = load(table)
    found = exact_posterior(data, prior=Prior(require=[("a", "b")])).effects(data, samples=2_000)
    tidy = found.tidy()
    assert list(tidy.columns) == ["cause", "effect", "probability", "mean", "low", "high"]
    assert len(tidy) == 6
    assert tidy["probability"].is_monotonic_decreasing
    first = tidy.iloc[0]
    assert (first["cause"], first["effect"], first["probability"]) == ("a", "b", 1)
    slope, error = stats.linregress(table["a"], table["b"])[0::4]
    assert first["mean"] == pytest.approx(slope, abs=0.3 * error)
    assert first["high"] - first["low"] == pytest.approx(2 * 1.65 * error, rel=0.1)
    logs = load(np.exp(table / 10), log=True)  # per unit of a logarithm
    same = exact_posterior(logs, prior=Prior(require=[("a", "b")])).effects(logs, samples=2_000)
    pd.testing.assert_frame_equal(same.mean, found.mean)


def test_tables_that_have_no_effects():
    data = continuous(20, 3)
    graphs = np.tile(FULL, (2, 1, 1))
    with pytest.raises(ValueError, match="effects are for continuous data, got discrete data"):
        effects_of(graphs, discrete(20, [2, 2, 2]))
    with pytest.raises(ValueError, match="need the score BGe, got BDeu"):
        effects_of(graphs, data, BDeu())
    with pytest.raises(ValueError, match="expected graphs of 3 variables, got 2"):
        effects_of(graphs[:, :2, :2], data)
    with pytest.raises(ValueError, match="expected a table with the columns X0, X1, X2, got X0"):
        exact_posterior(data).effects(continuous(20, 2))
    far = load(data.values * [1e-150, 1.0, 1e150])
    with pytest.raises(NatgfnError, match="effect of 'X0' on 'X2' is too large or too small"):
        effects_of(graphs, far)
    same = Data(data.names, 1e9 * data.values[:, [0, 0, 1]])
    with pytest.raises(NatgfnError, match=r"nearly sums of each other.*: standardise"):
        effects_of(graphs, same)
