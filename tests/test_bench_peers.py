"""The benchmark beside peers: its reports on answers that are made up, and a worker that fails."""

import json
import math
from pathlib import Path

import pytest

from benchmarks import pages, peers
from benchmarks.peers import report, rounds, venvs
from benchmarks.peers.workers.tasks import TASKS, Task, offset_for
from natgfn.errors import NatgfnError

TASK = TASKS[0]
SPEED = {"natgfn Adam": 1.0, "natgfn natural": 2.0, "gfnx": 4.0, "gfnx as installed": 6.0}
"""Milliseconds an update."""


class FakeWorker:
    """Answers as a worker does; `fails` is the question that it cannot answer."""

    def __init__(self, name: str, fails: str = ""):
        self.name, self.fails, self.versions = name, fails, {"library": "1.0"}

    def ask(self, what: str, **details):
        if what == self.fails:
            raise NatgfnError(f"{self.name}: ValueError: no {what}")
        if what == "prepare":
            self.batch = details["task"].batch
            return {"parameters": 70_916, "batch": self.batch, "first": 3.0}
        if what == "regime":
            self.length = details["length"]
        if what == "time":
            return {"seconds": 1e-3 * SPEED.get(self.name, 20.0)}
        return {"length": self.length}

    def close(self):
        pass


def answers(task: Task = TASK, regime: str = "fresh", **workers: FakeWorker):
    everyone = {name: workers.get(name, FakeWorker(name)) for name in rounds.CONTENDERS}
    return rounds.measure(everyone, task, rounds.Effort(3, 0.01), lambda _: None)[regime]


def test_every_task_has_its_limits():
    assert set(report.FASTER) == {(task, regime) for task in TASKS for regime in task.lengths}
    assert report.FASTER[Task("grid", 2, 64, 128), "long"] == {"gfnx": 6, "torchgfn": 8}
    assert report.FASTER[Task("dag", 5, 0, 128), "fresh"] == {"gfnx": 2}


def test_ratios_are_the_peers_time_over_ours():
    limits = report.measurements(TASK, "fresh", answers())
    assert [m.value for m in limits] == pytest.approx([4.0, 20.0, 0.5])
    assert [m.verdict for m in limits] == ["ok", "ok", "ok"]
    entry = report.summary(TASK, "fresh", answers())
    assert entry["answers"]["gfnx as installed"]["ratio"] == pytest.approx(6.0)
    assert entry["answers"]["gfnx"]["quartiles_ms"] == pytest.approx([4.0, 4.0])


def test_torchgfn_is_not_asked_about_graphs():
    assert "torchgfn" not in answers(TASKS[-1])
    assert "torchgfn" in answers(TASKS[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lengths": [3.0, 3.5]}, "gfnx has mean length 3.5, not 3.0"),
        ({"parameters": 80_000}, "gfnx has 80,000 parameters, not 70,916"),
        ({"batch": 8}, "gfnx draws 8 trajectories, not 16"),
    ],
)
def test_other_work_is_said(change, words):
    found = answers()
    assert report.differences(TASK, "fresh", found) == []
    found["gfnx"] |= change
    assert report.differences(TASK, "fresh", found) == [words]
    assert words in report.same_work(report.summary(TASK, "fresh", found))


@pytest.mark.parametrize("question", ["prepare", "regime", "time", "length"])
def test_a_peer_that_fails_is_reported_and_the_others_go_on(question):
    found = answers(gfnx=FakeWorker("gfnx", fails=question))
    assert found["gfnx"]["error"] == f"gfnx: ValueError: no {question}"
    assert len(found["torchgfn"]["seconds"]) == 3
    gfnx, torchgfn, natural = report.measurements(TASK, "fresh", found)
    assert math.isnan(gfnx.value)
    assert [gfnx.verdict, torchgfn.verdict, natural.verdict] == ["MISSED", "ok", "MISSED"]


def test_a_peer_that_cannot_be_installed_is_on_the_page(tmp_path, monkeypatch, capsys):
    def start(name):
        if name == "torchgfn":
            raise NatgfnError("cannot install torchgfn: ERROR: no such package")
        return FakeWorker(name)

    monkeypatch.setattr(peers, "Worker", start)
    assert peers.bench_peers(tmp_path, quick=True) == 1
    out = capsys.readouterr().out
    assert "torchgfn FAILED: cannot install torchgfn: ERROR: no such package" in out
    assert "same work: mean length 3" in out
    page = (tmp_path / "bench.peers.quick.md").read_text()
    assert "ERROR: no such package" in page
    assert "| failed |" in page

    def refuse(constant: str):
        raise AssertionError(constant)

    text = (tmp_path / "bench.peers.quick.json").read_text()
    results = json.loads(text, parse_constant=refuse)
    assert results["limits"][1]["value"] == "nan"
    assert (tmp_path / "bench.peers.quick.png").exists()


def test_a_worker_that_dies_says_why(tmp_path, monkeypatch):
    """A process that ends without an answer: the last line it wrote on standard error."""
    (tmp_path / "broken.py").write_text("raise SystemExit('no such module')\n")
    monkeypatch.setattr(rounds, "HERE", tmp_path)
    monkeypatch.setitem(rounds.CONTENDERS, rounds.ADAM, ("broken",))
    with pytest.raises(NatgfnError, match="natgfn Adam stopped: no such module"):
        rounds.Worker(rounds.ADAM)


def test_an_installation_is_made_once_for_each_recipe(tmp_path, monkeypatch):
    calls = []

    def run(command, **_):
        calls.append(command)
        (tmp_path / "gfnx").mkdir(exist_ok=True)
        return type("Done", (), {"returncode": 0, "stderr": ""})

    monkeypatch.setattr(venvs.subprocess, "run", run)
    for _ in range(2):
        assert venvs.interpreter("gfnx", tmp_path) == tmp_path / "gfnx" / "bin" / "python"
    assert [call[-1] for call in calls] == [str(tmp_path / "gfnx"), "optax", "jax==0.10.0"]
    monkeypatch.setitem(venvs.RECIPES, "gfnx", ("gfnx==9",))
    venvs.interpreter("gfnx", tmp_path)
    assert len(calls) == 5


def test_the_error_of_pip_is_one_line():
    text = "WARNING: slow\nERROR: no matching distribution\nhint\n"
    assert venvs.error_line(text) == "ERROR: no matching distribution"
    assert venvs.error_line("Traceback\nKeyError: 3\n") == "KeyError: 3"
    assert venvs.error_line("") == "no output"


def test_the_cache_can_be_elsewhere(monkeypatch):
    monkeypatch.setenv("NATGFN_PEERS", "elsewhere")
    assert venvs.cache() == Path("elsewhere")


def test_an_offset_for_a_length():
    assert offset_for(lambda x: math.exp(-x), 8.0) == pytest.approx(-math.log(8.0), abs=0.01)


def test_a_busy_machine_is_said(monkeypatch, capsys):
    monkeypatch.setattr(pages.os, "getloadavg", lambda: (0.9, 0.0, 0.0))
    assert pages.circumstances()["machine"]["load"] == 0.9
    assert capsys.readouterr().err == "warning: load 0.90 on this machine: times are noisy\n"
