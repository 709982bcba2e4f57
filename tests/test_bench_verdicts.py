"""The benchmark of verdicts: what it counts, that it goes on, and a run of it."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import verdicts
from benchmarks.verdicts import Case, Effort, Table


def entry(case: Case, error: float, word: str) -> dict:
    numbers = {"largest_difference_from_chains": 0.01}
    told = {"case": case, "name": case.name, "regime": case.regime, "spoiled": case.spoiled}
    told |= {"true_error": error, "effective_share": 0.5, "word": word, "why": ("so",)}
    return told | {"numbers": numbers}


def test_thirty_samplers_of_which_ten_are_spoiled():
    assert len(verdicts.CASES) == len(set(verdicts.CASES)) == 30
    spoiled = [case.spoiled for case in verdicts.CASES if case.spoiled]
    assert len(spoiled) == 10
    assert set(spoiled) == set(verdicts.SPOILT)
    assert max(case.table.variables for case in verdicts.CASES) <= 16


@pytest.mark.parametrize(
    ("error", "word", "wrong"),
    [
        (0.06, "agrees", 1),
        (float("nan"), "agrees", 1),
        (0.06, "do not use yet", 0),
        (0.04, "agrees", 0),
    ],
)
def test_what_agrees_and_is_wrong_is_counted(error: float, word: str, wrong: int):
    found = verdicts.wrong([entry(verdicts.CASES[0], error, word)])
    assert found.value == wrong
    assert found.good == (wrong == 0)


def test_it_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def judged(case: Case, effort: Effort) -> dict:
        asked.append(case)
        if len(asked) == 2:
            raise KeyboardInterrupt
        errors = {"": 0.01, verdicts.SHARPENED: float("inf")}
        return entry(case, errors[case.spoiled], "do not use yet")

    monkeypatch.setattr(verdicts, "judged_now", judged)
    with pytest.raises(KeyboardInterrupt):
        verdicts.bench_verdicts(tmp_path, quick=True)
    assert verdicts.bench_verdicts(tmp_path, quick=True) == 0
    first, second = verdicts.QUICK_CASES
    assert asked == [first, second, second]
    page = (tmp_path / "bench.verdicts.quick.md").read_text()
    assert "2 trained samplers of graphs, 1 of them spoiled" in page
    assert "0 agree. 1 are off by more than 0.05, 1 of them spoiled. 1 are off by 0.02 at" in page
    assert "and 1 of these are refused" in page
    found = json.loads((tmp_path / "bench.verdicts.quick.json").read_text())
    assert [s["true_error"] for s in found["samplers"]] == [0.01, "inf"]
    assert not (tmp_path / "bench.verdicts.quick.parts.jsonl").exists()


def test_other_rows_are_of_the_same_model():
    of = Table(4, 20_000, 1.0, 0)
    table, other = (verdicts.observed(of, rows_seed=seed).values for seed in (0, 1))
    assert np.abs(table - other).min() > 0
    np.testing.assert_allclose(np.corrcoef(table.T), np.corrcoef(other.T), atol=0.04)


@pytest.mark.slow
@pytest.mark.trains
def test_samplers_are_judged_beside_the_truth():
    for case in verdicts.QUICK_CASES:
        found = verdicts.judged_now(case, verdicts.QUICK)
        assert found["word"] == "do not use yet"  # so few sweeps tell nothing
        assert 0 < found["true_error"] < 1
        exact = verdicts.truth(case.table)
        assert exact.shape == (4, 4)
        assert np.all((exact >= 0) & (exact <= 1 + 1e-9))
