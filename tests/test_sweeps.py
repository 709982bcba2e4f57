"""Sweeps: which trials there are, what is said of them, and that none is lost or run twice."""

import csv
import json
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import distributed
import numpy as np
import pytest
from distributed import Client, LocalCluster
from typer.testing import CliRunner

import natgfn as ng
from natgfn import NatgfnError
from natgfn.cli import app
from natgfn.sweeps import (
    Study,
    Sweep,
    Trial,
    cluster,
    direction,
    result,
    study_from,
    study_in,
    sweeping,
    vary,
)
from natgfn.sweeps.study import values_of
from natgfn.training import CHECKPOINT
from natgfn.training.files import earlier_of

SMALL = ng.Setup(
    ng.envs.Hypergrid(side=3), ng.optim.Adam(0.1), updates=4, batch=4, evaluate_every=2, seeds=2
)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("3", ["3"]),
        ("a, b,c", ["a", "b", "c"]),
        ('[1, 2],{name="Adam", rate=3},"x,y"', ["[1, 2]", '{name="Adam", rate=3}', '"x,y"']),
        ("range(1, 7, 2)", ["1", "3", "5", "7"]),
        ("range(0.1, 0.3, 0.1)", ["0.1", "0.2", "0.3"]),
        ("range(4, 1, -1.5)", ["4", "2.5", "1"]),
        ("log(1e-3, 1e-1, 3)", ["0.001", "0.01", "0.1"]),
        ("log(64, 256, 3)", ["64", "128", "256"]),
    ],
)
def test_what_a_text_stands_for(text, values):
    assert values_of(text) == values


@pytest.mark.parametrize(
    "text",
    [
        *("range(1, 2)", "range(1, 5, 0)", "range(1, 5, -1)", "range(0, 1, 1e-9)"),
        *("range(a, b, c)", "range(1, nan, 1)", "log(0, 1, 3)", "log(1, 10, 2.5)"),
        *("log(1, inf, 3)", "log(1, 10, 0)"),
    ],
)
def test_a_range_that_is_none_is_one_line(text):
    with pytest.raises(NatgfnError, match=r"range|log"):
        values_of(text)


def test_every_combination_comes_with_every_seed():
    study = vary(SMALL, {"rule.rate": np.array([0.1, 0.2]), "batch": [4, 8, 16]})
    assert [t.name for t in study.trials[:3]] == ["0000-seed-0", "0000-seed-1", "0001-seed-0"]
    found = [(t.setup.rule.rate, t.setup.batch, t.setup.seed, t.setup.seeds) for t in study.trials]
    assert found == [(r, b, s, 1) for r in (0.1, 0.2) for b in (4, 8, 16) for s in (0, 1)]
    assert study.trials[-1].label == "rule.rate=0.2, batch=16"
    assert vary(SMALL, {"rule": [ng.optim.Adam(0.3)]}).trials[0].values["rule"] == "Adam rate=0.3"


def test_a_study_is_the_same_from_a_file_and_from_settings(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(
        'updates = 4\nseeds = 2\nrule = "adam"\nenv = "hypergrid"\n'
        '[sweep]\n"rule.rate" = "log(0.01, 1, 3)"\nbatch = [4, 8]\n'
    )
    words = ["env=hypergrid", "rule=adam", "updates=4", "seeds=2"]
    from_words = study_from(None, [*words, "rule.rate=0.01,0.1,1", "batch=4,8"])
    assert study_from(path, []).description() == from_words.description()
    assert len(from_words.trials) == 12
    assert len(study_from(path, ["batch=16"]).trials) == 6  # no longer varied
    assert study_from(path, ["env.side=4,5"]).trials[-1].setup.env.side == 5


@pytest.mark.parametrize(
    ("over", "told"),
    [
        ({"rule.speed": [1]}, "Adam has no field 'speed'"),
        ({"batch.size": [1]}, "int has no field 'size'"),
        ({"batch": []}, "batch needs a list of values"),
        ({"batch": "ab"}, "batch needs a list of values"),
        ({"batch": [0]}, "batch must be at least 1"),
        ({"seed": range(200_000)}, "the number of settings must be at most"),
        ({"seeds": [200_000]}, "the number of trials, settings times seeds, must be at most"),
    ],
)
def test_what_cannot_be_varied_is_one_line(over, told):
    with pytest.raises(ValueError, match=told):
        vary(SMALL, over)


def test_a_folder_keeps_its_sweep(tmp_path):
    study = vary(SMALL, {"batch": [4, 8]})
    study.keep(tmp_path)
    study.keep(tmp_path)
    assert study_in(tmp_path).description() == study.description()
    with pytest.raises(NatgfnError, match="holds a sweep of other settings"):
        vary(SMALL, {"batch": [4, 9]}).keep(tmp_path)
    (tmp_path / "sweep.json").write_text("[1, 2]")
    with pytest.raises(NatgfnError, match="does not describe a sweep"):
        study_in(tmp_path)


def made_up(values: dict[int, list[float]], metric: str = "kl") -> Sweep:
    """A sweep whose trials have ended with those values, by setting."""
    trials = [
        Trial(n, {"=rate": str(n)}, ng.Setup(SMALL.env, seed=seed))
        for n, found in values.items()
        for seed in range(len(found))
    ]
    lines = [
        {"error": "why"} if np.isnan(x) else {"step": 9, "seconds": 1.0, metric: [x]}
        for found in values.values()
        for x in found
    ]
    return Sweep(Study(tuple(trials)), lines, Path("nowhere"), metric)


def test_the_best_setting_comes_with_its_uncertainty():
    """The standard error against its definition, the share of wins against all resamples."""
    values = {0: [3.0, 4.0], 1: [1.0, 2.0], 2: [1.5, 9.0], 3: [0.0, np.nan]}
    found = made_up(values)
    assert [row["setting"] for row in found.settings] == [1, 0, 2, 3]
    best = found.best
    assert best["kl"] == 1.5
    assert best["standard_error"] == pytest.approx(np.std([1, 2], ddof=1) / 2**0.5)
    assert np.isnan(found.settings[-1]["kl"])
    means = {n: [np.mean([a, b]) for a in x for b in x] for n, x in values.items() if n != 3}
    wins = [min(a, b, c) == b for a in means[0] for b in means[1] for c in means[2]]
    assert best["best_share"] == pytest.approx(np.mean(wins), abs=0.05)
    assert [name for name, _ in found.failed] == ["0003-seed-1"]
    assert np.isnan(made_up({0: [1.0]}).best["standard_error"])
    assert made_up({0: [np.nan]}).best is None


def test_higher_is_better_where_it_is():
    assert made_up({0: [1.0], 1: [2.0]}, "elbo").best["setting"] == 1
    with pytest.raises(NatgfnError, match="whether a low 'rejected' is good"):
        direction("rejected")


def test_a_name_that_is_a_formula_stays_text():
    header, first = csv.reader(result._csv(made_up({0: [1.0]}).rows).splitlines())
    assert header[:3] == ["trial", "'=rate", "seed"]
    assert first[:3] == ["0000-seed-0", "0", "0"]


@contextmanager
def threads(scheduler, processes):
    """In place of worker processes, whose start takes seconds."""
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(sweeping, "workers", threads)


def test_a_sweep_runs_every_trial_once(here, tmp_path):
    """A trial that fails stops no other, and is the only one that is tried again."""
    over = {"objective": [_Broken(), SMALL.objective]}
    found = ng.sweep(SMALL, over, out=tmp_path / "s", progress=False)
    assert [name for name, _ in found.failed] == ["0000-seed-0", "0000-seed-1"]
    assert all(why == "RuntimeError: made to fail" for _, why in found.failed)
    with (tmp_path / "s" / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["error"] for row in rows] == [*["RuntimeError: made to fail"] * 2, "", ""]
    (best, _) = json.loads((tmp_path / "s" / "settings.json").read_text())
    assert best["setting"] == found.best["setting"] == 1
    again = ng.train(
        SMALL.env, SMALL.rule, updates=4, batch=4, evaluate_every=2, seed=1, progress=False
    )
    assert float(rows[3]["kl"]) == again.metrics["kl"][-1, 0]  # a trial is an ordinary run

    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("0001*/record.jsonl")}
    ng.sweep(SMALL, over, out=tmp_path / "s", progress=False)
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}
    found.report(tmp_path / "page.html")
    assert "All settings" in (tmp_path / "page.html").read_text()


class _Broken(ng.objectives.TrajectoryBalance):
    def __call__(self, *_, **__):
        raise RuntimeError("made to fail")

    residuals = __call__


def test_a_trial_killed_before_its_last_checkpoint_is_not_finished(here, tmp_path):
    """Its record is a line ahead then. (Found by `make faults`.)"""
    folder = tmp_path / "s"
    ng.sweep(SMALL, {}, out=folder, progress=False)
    last = folder / "0000-seed-1" / CHECKPOINT
    whole = last.read_bytes()
    earlier_of(last).replace(last)
    ng.sweep(SMALL, {}, out=folder, progress=False)
    assert last.read_bytes() == whole


def test_the_command_says_what_was_best(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "sweep env=hypergrid env.side=3 updates=4 batch=4 evaluate_every=2 rule=adam seeds=2"
    result = CliRunner().invoke(app, [*words.split(), "rule.rate=0.01,0.1", "--out", "s"])
    assert result.exit_code == 0, result.output
    assert "best: rule.rate=0.01, kl" in " ".join(result.output.split())
    assert (tmp_path / "s" / "report.html").exists()
    result = CliRunner().invoke(app, ["resume", "s", "--json"])
    assert json.loads(result.output)["settings"][0]["rule.rate"] == "0.01"
    result = CliRunner().invoke(app, [*words.split(), "rule.rate=0.01,0.2", "--out", "s"])
    assert result.exit_code == 2
    assert "holds a sweep of other settings" in result.output


def test_dask_is_named_where_it_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(NatgfnError, match=r"distributed is not installed: pip install 'natgfn\[sw"):
        ng.sweep(SMALL, {"batch": [4]}, out=tmp_path / "s", progress=False)


@pytest.mark.slow
def test_killed_workers_cost_no_more_than_since_the_last_checkpoint(tmp_path):
    """Three of them; and the trials end as they would have, to the bit."""
    setup = ng.Setup(
        ng.envs.Hypergrid(side=8), ng.optim.Adam(0.01), updates=4_000, evaluate_every=100, seeds=2
    )
    killed: list[int] = []

    def kill() -> None:
        """A worker, each time that a record has grown."""
        records = [tmp_path / "cut" / f"0000-seed-{seed}" / "record.jsonl" for seed in range(2)]
        for number in range(3):
            record, least = records[number % 2], 6 * (number + 1)
            while not record.exists() or record.read_bytes().count(b"\n") < least:
                time.sleep(0.005)
            owner = next(p for p in _children() if _holds(p, record.parent / "lock"))
            os.kill(owner, signal.SIGKILL)
            killed.append(owner)

    whole = ng.sweep(setup, {}, out=tmp_path / "whole", processes=2, progress=False)
    thread = threading.Thread(target=kill)
    thread.start()
    cut = ng.sweep(setup, {}, out=tmp_path / "cut", processes=2, progress=False)
    thread.join()
    assert len(set(killed)) == 3
    assert not cut.failed
    for name in ("0000-seed-0", "0000-seed-1"):
        with (
            np.load(tmp_path / "cut" / name / "checkpoint.npz") as one,
            np.load(tmp_path / "whole" / name / "checkpoint.npz") as other,
        ):
            assert all(one[key].tobytes() == other[key].tobytes() for key in other.files)
        steps = [
            json.loads(line)["step"]
            for line in (tmp_path / "cut" / name / "record.jsonl").read_text().splitlines()[1:]
        ]
        assert steps == list(range(0, 4_001, 100))
    assert cut.best["kl"] == whole.best["kl"]


def _children() -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process().children(recursive=True)]


def _holds(pid: int, path: Path) -> bool:
    try:
        return any(file.resolve() == path for file in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


@pytest.mark.parametrize("deaths", [2, 1_000])
def test_a_worker_that_dies_before_it_is_up_is_started_again(monkeypatch, deaths: int):
    begun = []

    class Dying(distributed.LocalCluster):
        def __init__(self, **settings):
            begun.append(settings)
            if len(begun) <= deaths:
                raise RuntimeError("Nanny failed to start.")
            super().__init__(n_workers=0, processes=False, dashboard_address=None)

    monkeypatch.setattr(distributed, "LocalCluster", Dying)
    if deaths == 2:
        with cluster.workers(None, 1) as client:
            assert client.submit
        assert len(begun) == 3
        return
    with (
        pytest.raises(NatgfnError, match="10 times a worker process died before it was up"),
        cluster.workers(None, 1),
    ):
        pass
    assert len(begun) == 10
