"""Scores against their definitions, and against published numbers."""

import numpy as np
import pytest
from dag_oracles import all_dags, equivalence_class, log_rewards
from scipy.special import gammaln
from scipy.stats import multivariate_t

from natgfn import NatgfnError
from natgfn.dag import CONSENSUS, BDeu, BGe, Data, adjacency, load, local_scores, sachs


def continuous(rows: int, size: int, seed: int = 0) -> Data:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, size)) @ rng.normal(size=(size, size)) + rng.normal(size=size)
    return Data(tuple(f"X{i}" for i in range(size)), values)


def discrete(rows: int, levels: list[int], seed: int = 0) -> Data:
    rng = np.random.default_rng(seed)
    values = np.stack([rng.integers(0, number, rows) for number in levels], axis=1)
    values[:, 1] = (values[:, 0] + (rng.random(rows) < 0.2)) % levels[1]
    return Data(tuple(f"X{i}" for i in range(len(levels))), values, discrete=True)


def total(table: np.ndarray, graph: np.ndarray) -> float:
    return float(log_rewards(table, graph[None])[0])


@pytest.mark.parametrize(("ddof", "empty", "full"), [(0, -13398.5147, -12399.7736),
                                                     (1, -13392.9954, -12394.2365)])  # fmt: skip
def test_bge_of_the_sachs_data(ddof: int, empty: float, full: float):
    logs = np.log(sachs())
    table = local_scores(BGe(), load((logs - logs.mean()) / logs.std(ddof=ddof), standardise=False))
    consensus = adjacency(logs.columns, CONSENSUS)
    assert total(table, 0 * consensus) == pytest.approx(empty, abs=1e-4)
    assert total(table, consensus) == pytest.approx(full, abs=1e-4)


def test_bge_of_single_sachs_variables():
    table = local_scores(BGe(), load(sachs(), log=True))
    assert table[0, 0] == pytest.approx(-1218.0468, abs=1e-4)
    assert table[1, 0b01] == pytest.approx(-958.2862, abs=1e-4)
    raf_given_mek = table[0, 0b10]
    assert raf_given_mek == pytest.approx(table[1, 0b01], abs=1e-9)
    assert np.isneginf(table[0, 0b01])


def test_bge_of_all_graphs_of_three_sachs_variables():
    table = local_scores(BGe(), load(sachs().iloc[:, :3], log=True))
    scores = log_rewards(table, all_dags(3))
    assert len(scores) == 25
    assert len(np.unique(scores.round(6))) == 11
    assert scores.max() == pytest.approx(-3394.3797, abs=1e-4)
    assert scores.min() == pytest.approx(-3663.1504, abs=1e-4)
    assert total(table, np.zeros((3, 3), int)) == pytest.approx(-3654.1404, abs=1e-4)


def test_bge_is_the_product_of_predictive_laws():
    """Each row given those before has a t-law, whose parameters every row updates."""
    data, members, size = continuous(12, 4), [0, 2, 3], 4
    scale = np.array([[2.0, 0.5, 0, 0], [0.5, 1, 0, 0.2], [0, 0, 3, 0], [0, 0.2, 0, 1.5]])
    mean, weight, freedom = np.array([0.3, -1.0, 0.5, 2.0]), 0.7, 6.5
    score = BGe(mean=mean, mean_weight=weight, freedom=freedom, scale=scale)
    found = score.log_marginals(data, np.array([0b1101]))[0]

    expected = 0.0
    mean, scale = mean[members], scale[np.ix_(members, members)]
    degrees = freedom - size + len(members)
    for row in data.values[:, members]:
        free = degrees - len(members) + 1
        shape = scale * (weight + 1) / (weight * free)
        expected += multivariate_t.logpdf(row, mean, shape, df=free)
        scale = scale + weight / (weight + 1) * np.outer(row - mean, row - mean)
        mean, weight = (weight * mean + row) / (weight + 1), weight + 1
        degrees += 1
    assert found == pytest.approx(expected, abs=1e-9)


def test_bdeu_counts_by_definition():
    data, size = discrete(30, [2, 3, 2], seed=1), 2.5
    table = local_scores(BDeu(size), data)
    for child, parents in ((0, []), (1, [0]), (1, [0, 2]), (2, [0, 1])):
        levels = data.values.max(axis=0) + 1
        configurations = int(np.prod(levels[parents]))
        expected = 0.0
        for number in range(configurations):
            wanted = np.unravel_index(number, levels[parents]) if parents else ()
            rows = data.values[np.all(data.values[:, parents] == wanted, axis=1)]
            share = size / configurations
            expected += gammaln(share) - gammaln(share + len(rows))
            for level in range(levels[child]):
                seen, part = np.sum(rows[:, child] == level), share / levels[child]
                expected += gammaln(part + seen) - gammaln(part)
        assert table[child, sum(1 << p for p in parents)] == pytest.approx(expected, abs=1e-9)


def test_bdeu_with_more_joint_levels_than_integers():
    """What is seen is counted, however many levels there might be."""
    rows = np.arange(80)
    columns = [np.where(rows // 2 % 40 == shift, 0, rows // 2) for shift in range(13)]
    data = Data(tuple(map(str, range(13))), np.stack(columns, axis=1), discrete=True)
    found = BDeu().log_marginals(data, np.array([2**13 - 1]))[0]
    counts = np.unique(data.values, axis=0, return_counts=True)[1]
    share = 1 / np.prod(data.values.max(axis=0) + 1.0)
    expected = gammaln(1) - gammaln(81) + np.sum(gammaln(share + counts) - gammaln(share))
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("score", "data"),
    [
        (BGe(mean_weight=0.3, freedom=9.0, scale=2.0), continuous(50, 4)),
        (BDeu(3.0), discrete(50, [2, 3, 2, 4])),
    ],
)
def test_markov_equivalent_graphs_score_the_same(score: BGe | BDeu, data: Data):
    scores = log_rewards(local_scores(score, data), all_dags(4))
    classes: dict[tuple, list[float]] = {}
    for graph, value in zip(all_dags(4), scores, strict=True):
        classes.setdefault(equivalence_class(graph), []).append(value)
    assert len(classes) == 185
    assert max(np.ptp(values) for values in classes.values()) < 1e-8
    assert len({round(values[0], 5) for values in classes.values()}) == 185


def test_wrong_hyper_parameters_and_wrong_data():
    data = continuous(10, 3)
    for make, words in (
        (lambda: BGe(mean_weight=0.0), "mean_weight must be positive"),
        (lambda: BDeu(0.0), "sample_size must be positive"),
        (lambda: local_scores(BGe(freedom=2.0), data), "freedom must exceed d - 1 = 2"),
        (lambda: local_scores(BGe(freedom=3.5), data), "scale must be positive"),
        (lambda: local_scores(BGe(scale=-np.eye(3)), data), "positive definite 3 x 3"),
        (lambda: local_scores(BDeu(), data), "use BGe"),
        (lambda: local_scores(BGe(), discrete(9, [2, 2])), "use BDeu"),
    ):
        with pytest.raises(ValueError, match=words):
            make()


def test_a_table_that_does_not_fit_is_refused_before_it_is_made():
    data = Data(tuple(f"X{i}" for i in range(27)), np.random.default_rng(0).normal(size=(30, 27)))
    with pytest.raises(NatgfnError, match=r"27 variables would take 27 GB, more than .* 8 GB"):
        local_scores(BGe(), data)
