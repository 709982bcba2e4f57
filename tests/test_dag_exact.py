"""The exact posterior against the enumeration of all graphs."""

from fractions import Fraction

import numpy as np
import pytest
from dag_oracles import (
    COUNTS,
    all_dags,
    law,
    log_rewards,
    parent_bits,
    random_weights,
    sum_of_integers,
)

from natgfn import NatgfnError
from natgfn.dag import ExactPosterior, Prior, exact_posterior, graphs, load, log_weights, solve
from natgfn.dag.layers import forward, tabulate
from natgfn.dag.scores import BGe


def names(size: int) -> tuple[str, ...]:
    return tuple("abcdefghijk"[:size])


def pruned(size: int, seed: int) -> np.ndarray:
    """Weights of which half are zero; the empty graph remains."""
    table = random_weights(size, 3.0, seed)
    table[:, 1:][np.random.default_rng(seed + 1).random((size, 2**size - 1)) < 0.5] = -np.inf
    return table


TABLES = {
    "one vertex": np.array([[0.7, -np.inf]]),
    "two": random_weights(2, 1.0, 0),
    "three": random_weights(3, 2.0, 1),
    "four": random_weights(4, 1.0, 2),
    "four, half forbidden": pruned(4, 3),
    "four, steep": random_weights(4, 300.0, 4),
    "four, beyond the range of doubles": random_weights(4, 5000.0, 5),
    "five": random_weights(5, 2.0, 6),
    "five, half forbidden": pruned(5, 7),
    "five, steep": random_weights(5, 40.0, 8),
}


@pytest.fixture(scope="module", params=TABLES)
def case(request: pytest.FixtureRequest) -> tuple[np.ndarray, ExactPosterior]:
    table = TABLES[request.param]
    return table, solve(table, names(len(table)))


def test_equal_to_the_sum_over_all_graphs(case: tuple[np.ndarray, ExactPosterior]):
    table, found = case
    dags, probabilities, log_z = law(table)
    assert found.log_z == pytest.approx(log_z, rel=1e-13, abs=1e-10)
    edges = np.einsum("n,nij->ij", probabilities, dags)
    np.testing.assert_allclose(found.edge_marginals.to_numpy(), edges, rtol=0, atol=1e-10)
    sets = np.zeros_like(table)
    for child, column in enumerate(parent_bits(dags).T):
        np.add.at(sets[child], column, probabilities)
    np.testing.assert_allclose(found.parent_sets, sets, rtol=0, atol=1e-10)
    assert found.expected_edges == pytest.approx(edges.sum(), abs=1e-10)
    possible = probabilities > 0
    mean = np.sum(probabilities[possible] * log_rewards(table, dags)[possible])
    assert found.expected_log_reward == pytest.approx(mean, rel=1e-10, abs=1e-10)
    assert found.accuracy < 1e-11


def test_most_probable_graphs_are_those_of_the_enumeration(
    case: tuple[np.ndarray, ExactPosterior],
):
    table, found = case
    dags, probabilities, _ = law(table)
    possible = np.isfinite(log_rewards(table, dags))
    number = min(30, possible.sum())
    best, their = found.top(30)
    assert len(best) == number
    order = np.argsort(-log_rewards(table, dags)[possible], kind="stable")[:number]
    np.testing.assert_array_equal(best, dags[possible][order])
    np.testing.assert_allclose(their, probabilities[possible][order], rtol=1e-9)


def test_equals_are_all_listed_once():
    best, probability = solve(np.where(np.isfinite(random_weights(3, 1, 0)), 0.0, -np.inf),
                              names(3)).top(100)  # fmt: skip
    assert len({graph.tobytes() for graph in best}) == 25
    np.testing.assert_allclose(probability, 1 / 25)


@pytest.mark.parametrize("size", range(1, 12))
def test_number_of_acyclic_graphs(size: int):
    table = np.where(np.isfinite(random_weights(size, 1.0, 0)), 0.0, -np.inf)
    ahead = forward(tabulate(table))
    assert np.exp(ahead.log_z - np.log(float(COUNTS[size - 1]))) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("size", "spread"), [(8, 3), (8, 30), (9, 100)])
def test_equal_to_integer_arithmetic(size: int, spread: int):
    """Powers of two, up to where alternating sums of doubles are wrong by many orders."""
    powers = np.random.default_rng(size + spread).integers(0, 4 * spread, (size, 2**size))
    powers[:, 0] = 2 * spread
    own = np.arange(2**size) >> np.arange(size)[:, None] & 1 == 1
    weights = [[0 if no else 1 << int(k) for k, no in zip(*rows, strict=True)]
               for rows in zip(powers, own, strict=True)]  # fmt: skip
    found = solve(np.where(own, -np.inf, powers * np.log(2)), names(size))
    total = sum_of_integers(weights)
    log_total = np.log(total >> total.bit_length() - 64) + (total.bit_length() - 64) * np.log(2)
    assert found.log_z == pytest.approx(log_total, rel=1e-14)
    for source, target in ((0, 1), (3, 2), (5, 7)):
        row = [0 if s >> source & 1 else weight for s, weight in enumerate(weights[target])]
        without = sum_of_integers([*weights[:target], row, *weights[target + 1 :]])
        probability = float(Fraction(total - without, total))
        assert found.edge_marginals.iloc[source, target] == pytest.approx(probability, abs=1e-11)


def test_marginals_of_seven_vertices_are_derivatives():
    """d log Z / d w is the probability of a parent set; by symmetric differences."""
    table = random_weights(7, 2.0, 9)
    found = solve(table, names(7))
    for child, parents in ((0, 0b1010), (3, 0), (6, 0b111), (2, 0b1111000)):
        ends = []
        for change in (1e-4, -1e-4):
            moved = table.copy()
            moved[child, parents] += change
            ends.append(forward(tabulate(moved)).log_z)
        slope = (ends[0] - ends[1]) / 2e-4
        assert found.parent_sets[child, parents] == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize("table", [random_weights(3, 1.5, 10), pruned(3, 12)])
def test_samples_follow_the_law(table: np.ndarray):
    dags, probabilities, _ = law(table)
    count = 40_000
    drawn = parent_bits(solve(table, names(3)).sample(count, seed=3).astype(np.int64))
    seen = np.array([np.sum(np.all(drawn == row, axis=1)) for row in parent_bits(dags)])
    assert seen.sum() == count
    assert not seen[probabilities == 0].any()
    deviation = np.sqrt(count * probabilities * (1 - probabilities))
    assert np.all(np.abs(seen - count * probabilities) <= 4.5 * deviation + 1e-9)


def test_samples_of_steep_weights_are_possible_and_have_the_marginals():
    table = random_weights(8, 30.0, 14)
    table[:, 1:][np.random.default_rng(0).random((8, 255)) < 0.7] = -np.inf
    found = solve(table, names(8))
    drawn = found.sample(20_000, seed=1)
    assert graphs.is_acyclic(drawn).all()
    assert np.isfinite(log_rewards(table, drawn.astype(np.int64))).all()
    np.testing.assert_allclose(
        drawn.mean(axis=0), found.edge_marginals, atol=4.5 * 0.5 / 20_000**0.5
    )


def test_samples_repeat_with_their_seed():
    found = solve(random_weights(4, 1.0, 15), names(4))
    np.testing.assert_array_equal(found.sample(50, seed=1), found.sample(50, seed=1))
    assert not np.array_equal(found.sample(50, seed=1), found.sample(50, seed=2))
    assert found.sample(0).shape == (0, 4, 4)


def test_paths_and_blankets_have_the_enumerated_probabilities():
    table = random_weights(4, 1.5, 16)
    dags, probabilities, _ = law(table)
    paths, blankets = np.zeros((4, 4)), np.zeros((4, 4))
    for graph, probability in zip(dags, probabilities, strict=True):
        walks = sum(np.linalg.matrix_power(graph, k) for k in range(1, 4))
        paths += probability * (walks > 0)
        for j in range(4):
            children = np.flatnonzero(graph[j])
            near = set(np.flatnonzero(graph[:, j])) | set(children)
            near |= {i for k in children for i in np.flatnonzero(graph[:, k])}
            blankets[list(near - {j}), j] += probability
    found = solve(table, names(4))
    bound = 4.5 * 0.5 / 10_000**0.5
    np.testing.assert_allclose(found.ancestors(), paths, atol=bound)
    np.testing.assert_allclose(found.markov_blankets(), blankets, atol=bound)
    assert found.markov_blanket("b").to_dict() == found.markov_blankets()["b"].drop("b").to_dict()
    with pytest.raises(ValueError, match="no variable 'z'"):
        found.markov_blanket("z")


def test_priors_filter_and_weigh_graphs():
    rng = np.random.default_rng(17)
    data = load(rng.normal(size=(40, 4)) @ rng.normal(size=(4, 4)))
    prior = Prior(
        edge_penalty=0.3,
        edge_probability=0.2,
        max_parents=2,
        require=(("X0", "X2"),),
        forbid=[("X3", "X1"), ("X1", "X0")],
        log_odds={("X2", "X3"): 1.5, ("X0", "X2"): -1.0},
    )
    found = exact_posterior(data, prior=prior, temperature=0.4)

    scores = log_weights(data, BGe(), Prior())
    dags = all_dags(4)
    logs = 0.4 * log_rewards(scores, dags) + dags.sum(axis=(1, 2)) * (np.log(0.25) - 0.3)
    logs += 1.5 * dags[:, 2, 3] - 1.0 * dags[:, 0, 2]
    kept = (dags[:, 0, 2] == 1) & (dags[:, 3, 1] == 0) & (dags[:, 1, 0] == 0)
    kept &= dags.sum(axis=1).max(axis=1) <= 2
    weights = np.where(kept, np.exp(logs), 0.0)
    assert found.log_z == pytest.approx(np.log(weights.sum()), abs=1e-10)
    edges = np.einsum("n,nij->ij", weights / weights.sum(), dags)
    np.testing.assert_allclose(found.edge_marginals, edges, atol=1e-10)
    assert found.edge_marginals.loc["X0", "X2"] == pytest.approx(1.0, abs=1e-12)
    assert found.edge_marginals.loc["X3", "X1"] == 0
    drawn = found.sample(500)
    assert drawn[:, 0, 2].all()
    assert not drawn[:, 3, 1].any()
    assert drawn.sum(axis=1).max() == 2


def test_the_papers_temperature_is_one_over_the_root_of_the_rows():
    data = load(np.random.default_rng(18).normal(size=(49, 3)))
    paper = log_weights(data, BGe(), Prior(), "paper")
    np.testing.assert_allclose(paper, log_weights(data, BGe(), Prior()) / 7, rtol=1e-14)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"require": (("X0", "X1"), ("X1", "X2"), ("X2", "X0"))}, "cycle, got X0 -> "),
        ({"require": (("X0", "X0"),)}, "cycle, got X0 -> X0"),
        ({"require": (("X0", "X1"),), "forbid": (("X0", "X1"),)}, "X0->X1 is both required"),
        ({"require": (("X0", "X2"), ("X1", "X2")), "max_parents": 1}, "X2 has 2 required parents"),
        ({"forbid": (("X0", "X11"),)}, r"X0->X11: no variable 'X11'; did you mean X1\?"),
        ({"forbid": (("X0", "Erk"),)}, "no variable 'Erk'; expected X0, X1, X2"),
        ({"max_parents": -1}, "max_parents must be at least 0, got -1"),
        ({"edge_probability": 1.0}, "edge_probability must be in"),
        ({"edge_penalty": np.inf}, "edge_penalty must be finite"),
        ({"log_odds": {("X0", "X1"): -np.inf}}, "log_odds must be finite"),
    ],
)
def test_impossible_priors_are_one_clear_line(options: dict, words: str):
    data = load(np.random.default_rng(19).normal(size=(10, 3)))
    with pytest.raises((NatgfnError, ValueError), match=words) as error:
        log_weights(data, BGe(), Prior(**options))
    assert "\n" not in str(error.value)


def test_wrong_temperatures_and_sizes():
    data = load(np.random.default_rng(20).normal(size=(30, 3)))
    with pytest.raises(ValueError, match=r"temperature must be positive and finite.* got 0"):
        exact_posterior(data, temperature=0.0)
    wide = load(np.random.default_rng(21).normal(size=(30, 19)))
    with pytest.raises(NatgfnError, match=r"19 variables would take 2\d GB"):
        exact_posterior(wide)
