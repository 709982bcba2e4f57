"""Interventions: rows leave the score of what was set in them, and of nothing else."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import gammaln
from test_cli import assert_one_line, natgfn
from test_dag_scores import continuous, discrete

from natgfn import NatgfnError
from natgfn.cli import dag as commands
from natgfn.dag import (
    BDeu,
    BGe,
    Data,
    Prior,
    effects_of,
    exact_posterior,
    load,
    local_scores,
    log_weights,
)
from natgfn.dag.candidates import Candidates, Weights


def set_in(data: Data, seed: int = 0) -> Data:
    """With a target in about half of the rows, never the last variable."""
    mask = np.random.default_rng(seed).random(data.values.shape) < 0.2
    mask[:, -1] = False
    return replace(data, intervened=mask)


CASES = {
    "BGe": (BGe(mean=0.3, mean_weight=0.7), set_in(continuous(30, 4))),
    "BDeu": (BDeu(2.0), set_in(discrete(60, [2, 3, 2, 2]))),
}


@pytest.mark.parametrize("name", CASES)
def test_scores_are_those_of_the_rows_that_remain(name: str):
    score, data = CASES[name]
    table, whole = local_scores(score, data), local_scores(score, replace(data, intervened=None))
    assert data.intervened is not None
    for child in range(4):
        kept = Data(data.names, data.values[~data.intervened[:, child]], data.discrete)
        assert np.all(kept.values.max(axis=0) == data.values.max(axis=0)) or name == "BGe"
        np.testing.assert_allclose(table[child], local_scores(score, kept)[child], atol=1e-9)
    assert np.abs(table[:3, 0] - whole[:3, 0]).min() > 0.1
    np.testing.assert_array_equal(table[3], whole[3])


@pytest.mark.parametrize("name", CASES)
def test_candidates_have_the_same_scores(name: str):
    """What chains and wide samplers look up, and what the exact posterior sums over."""
    score, data = CASES[name]
    weights, table = Weights.of(data, score, Prior()), log_weights(data, score, Prior())
    sets = np.arange(16)[:, None] >> np.arange(4) & 1 == 1
    for child in range(4):
        np.testing.assert_allclose(weights.local(child, sets), table[child], atol=1e-9)
    found = Candidates.of(weights, 3).env
    for child, inside in enumerate(found.candidates):
        bits = sum((np.arange(8) >> k & 1) << i for k, i in enumerate(inside))
        np.testing.assert_allclose(found.log_weights[child, 0], table[child, bits], atol=1e-9)


def test_levels_are_those_of_the_whole_table():
    """Also of a level that was only ever set."""
    values = np.array([[0, 0], [1, 1], [0, 1], [1, 0], [2, 1]])
    mask = np.zeros((5, 2), bool)
    mask[4, 0] = True
    found = local_scores(BDeu(3.0), Data(("a", "b"), values, discrete=True, intervened=mask))
    # Four rows, of three levels with a pseudo-count of one each.
    expected = gammaln(3) - gammaln(7) + 2 * (gammaln(3) - gammaln(1))
    assert found[0, 0] == pytest.approx(expected, abs=1e-12)


def simulated(rows: int = 200) -> tuple[pd.DataFrame, list[str]]:
    """a causes b, by 0.8; in every second row b is set."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=rows)
    b = 0.8 * a + rng.normal(size=rows)
    b[::2] = 2 * rng.normal(size=rows // 2)
    return pd.DataFrame({"a": a, "b": b}), ["b", ""] * (rows // 2)


def test_interventions_direct_what_observations_cannot():
    table, targets = simulated()
    observed = exact_posterior(load(table.iloc[1::2])).edge_marginals
    assert observed.loc["a", "b"] == pytest.approx(observed.loc["b", "a"], abs=1e-12)
    data = load(table, interventions=targets)
    found = exact_posterior(data).edge_marginals
    assert found.loc["a", "b"] > 0.99
    # The coefficient is that of the rows in which b was not set.
    effect = effects_of(np.tile(np.array([[0, 1], [0, 0]]), (4_000, 1, 1)), data)
    kept = table.iloc[1::2].to_numpy()
    slope = np.polyfit(*kept.T, 1)[0]
    mixed = np.polyfit(*table.to_numpy().T, 1)[0]
    assert effect.mean.loc["a", "b"] == pytest.approx(slope, abs=0.03)
    assert abs(slope - mixed) > 0.2


def test_a_chain_has_its_directions_only_with_interventions():
    """Of a -> b -> c -> d, observations say which are joined, and nothing of directions."""
    rng, rows, size = np.random.default_rng(1), 400, 4
    values, mask = rng.normal(size=(rows, size)), np.zeros((rows, size), bool)
    mask[::4, 1] = mask[1::4, 2] = True  # b is set in a quarter of the rows, c in another
    for child in range(1, size):
        values[:, child] += np.where(mask[:, child], 0.0, 0.8 * values[:, child - 1])

    def along(data: Data) -> np.ndarray:
        """Probabilities of the edges of the chain, and of the reverse of each."""
        edges = exact_posterior(data).edge_marginals.to_numpy()
        return np.stack([np.diag(edges, 1), np.diag(edges, -1)])

    assert along(load(values, interventions=mask))[0].min() > 0.99
    observed = along(load(values[2::4]))
    assert observed.sum(axis=0).min() > 0.95
    assert observed.min() > 0.1
    assert along(load(values))[0].min() < 0.5  # as if nothing had been set


def test_all_ways_to_say_it_are_the_same(tmp_path: Path):
    values = np.random.default_rng(0).normal(size=(5, 3))
    table = pd.DataFrame(values, columns=["a", "b;c", "c"])
    expected = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 1], [0, 0, 0]], bool)
    lines = ["", "a", "b;c", " a ; c;", ""]
    path = tmp_path / "targets.csv"
    path.write_text("\n".join(["target", *lines]) + "\n")
    for given in (path, str(path), lines, pd.Series([None, *lines[1:]]), np.array(lines), expected):
        np.testing.assert_array_equal(load(table, interventions=given).intervened, expected)
    assert load(table).intervened is None


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["", "x", "", "a"], ("targets.csv, row 2: no variable 'x'", "expected a, cold")),
        (["", "cald", "", "a"], ("row 2: no variable 'cald'", "did you mean cold?")),
        (["a", "cold"], ("expected a line for each of 4 rows", "got 2")),
        (["a", "", "", "", ""], ("expected a line for each of 4 rows", "got 5")),
        (["a", "a;cold", "a", "a"], ("'a' was intervened on in every row", "bring")),
        (["a", "a,b", "", ""], ("2 cells in line 3", "semicolons")),
        (['"' + "a" * 200_000 + '"', "", "", ""], ("not a CSV file", "field larger")),
    ],
)
def test_what_makes_no_sense_is_one_line(
    lines: list[str], words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text("a,cold\n1,2\n2,1\n3,5\n4,4\n")
    Path("targets.csv").write_text("\n".join(["target", *lines]) + "\n")
    with pytest.raises(NatgfnError) as error:
        load("data.csv", interventions="targets.csv")
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_files_and_matrices_that_cannot_be_used(tmp_path: Path):
    table = np.random.default_rng(0).normal(size=(4, 2))
    with pytest.raises(NatgfnError, match=r"cannot read .*missing\.csv: No such file"):
        load(table, interventions=tmp_path / "missing.csv")
    (tmp_path / "x.csv").write_bytes(b"\x80\x04\x95")
    with pytest.raises(NatgfnError, match="is not a CSV file"):
        load(table, interventions=tmp_path / "x.csv")
    with pytest.raises(ValueError, match=r"bool in 4 rows and 2 columns, got .* \(3, 2\)"):
        load(table, interventions=np.zeros((3, 2), bool))
    with pytest.raises(ValueError, match=r"bool in 4 rows and 2 columns, got int64 in the shape"):
        load(table, interventions=np.zeros((4, 2), int))


def test_the_command_line_and_resume_keep_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    table, targets = simulated()
    table.to_csv("data.csv", index=False)
    Path("targets.csv").write_text("\n".join(["target", *targets]) + "\n")
    with_them = ("data.csv", "--interventions", "targets.csv")
    result = natgfn("dag", "exact", *with_them, "--out", "run")
    assert result.exit_code == 0, result.output
    assert "200 rows, 2 variables, 100 rows with interventions" in result.output
    edges = pd.read_csv("run/edge_marginals.csv", index_col=0)
    assert edges.loc["a", "b"] > 0.99
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["options"]["interventions"] == "targets.csv"
    assert "--interventions targets.csv" in summary["command"]
    assert_one_line(natgfn("dag", "exact", *with_them[:2], "x.csv"), 2, "error: ", "cannot read")

    def stopped(*args, **options):
        raise NatgfnError("stopped")

    monkeypatch.setattr("natgfn.dag.fit", stopped)
    assert_one_line(natgfn("dag", "fit", *with_them, "--out", "fit"), 2, "stopped")
    seen = []
    monkeypatch.setattr(commands, "_fit", lambda case, *_, **__: seen.append(case))
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert natgfn("resume", "../fit").exit_code == 0
    np.testing.assert_array_equal(seen[0].table().intervened[:, 1], np.array(targets) == "b")
