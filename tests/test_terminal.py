"""What a terminal, a log file and a program get to see of a command."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from test_cli import TINY, assert_one_line, natgfn

from natgfn.cli.voice import Voice
from natgfn.progress import Progress, track


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


def test_the_list_fits_a_terminal_and_has_no_latex():
    result = natgfn("list")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert not {"$", "\\", "`"} & set(result.stdout)
    for words in ("Hypergrid", "SampleSpace", "rule.occupancy=", "triangle", "tabular"):
        assert words in result.stdout
    assert "side=8" not in result.stdout


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ("envs", ("Hypergrid", "side=8")),
        ("rule.occupancy", ("Factorised", "route='joint'")),
        ("occupancies", ("Factorised",)),
        ("benchmarks", ("tabular",)),
    ],
)
def test_one_group_has_its_options(group: str, words: tuple[str, ...]):
    result = natgfn("list", group)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert all(word in result.stdout for word in words)
    assert "Euclidean" not in result.stdout


def test_an_unknown_group_is_one_line():
    assert_one_line(natgfn("list", "enws"), 2, "no group 'enws'", "env", "experiments")


def test_programs_get_one_object():
    trained = natgfn("train", *TINY, "seeds=2", "--out", "run", "--json")
    found = json.loads(trained.stdout)
    last = json.loads(Path("run/record.jsonl").read_text().splitlines()[-1])
    assert found["metrics"]["kl"] == last["kl"]
    assert (found["updates"], found["seeds"], found["out"]) == (4, 2, "run")
    assert Path(found["report"]).exists()
    assert json.loads(natgfn("resume", "run", "--json").stdout)["metrics"] == found["metrics"]
    checked = natgfn("check", "natgfn.envs:Hypergrid", "side=3", "--json")
    assert json.loads(checked.stdout)["ok"]


def test_programs_get_one_object_about_graphs_and_factors():
    values = np.random.default_rng(0).normal(size=(20, 2))
    pd.DataFrame(values, columns=["a", "b"]).to_csv("data.csv", index=False)
    Path("model.uai").write_text("MARKOV\n2\n2 2\n1\n2 0 1\n4\n1 2 3 4\n")
    graphs = natgfn("dag", "exact", "data.csv", "--out", "graphs", "--json")
    written = json.loads(Path("graphs/summary.json").read_text())
    assert written.items() <= json.loads(graphs.stdout).items()
    factors = natgfn("graphical", "exact", "model.uai", "--out", "factors", "--json")
    assert json.loads(factors.stdout)["log_z"] == pytest.approx(np.log(10))


def test_quiet_is_quiet():
    trained = natgfn("train", *TINY, "--out", "run", "--quiet")
    assert (trained.exit_code, trained.output) == (0, "")
    checked = natgfn("check", "natgfn.envs:Hypergrid", "side=3", "-q")
    assert (checked.exit_code, checked.output) == (0, "")
    assert_one_line(natgfn("train", "env=nothing", "-q"), 2, "nothing")


def test_a_run_ends_with_what_to_do_next():
    said = natgfn("train", *TINY, "--out", "run").stdout
    assert "the run is in run" in said
    assert "run/report.html" in said
    assert "natgfn certify run" in said
    assert "reverse_kl" not in said  # the page has it


def test_without_a_terminal_progress_is_lines(capsys: pytest.CaptureFixture[str]):
    with Progress("training", 1_000, lines=0.0) as progress:
        progress.say("8 states")
        progress.update(0)
        progress.update(500, "[red]2 steps rejected[/red]")
    first, start, half = capsys.readouterr().out.splitlines()
    assert first == "8 states"
    assert start == "training: 0 of 1,000"
    assert half == "training: 500 of 1,000, 0 s left, 2 steps rejected"
    with Progress("training", 10) as progress:
        progress.update(5)
    assert list(track([1, 2], "items")) == [1, 2]
    assert capsys.readouterr().out == ""  # the first line comes after half a minute


def test_nothing_is_shown_where_that_was_asked_for(capsys: pytest.CaptureFixture[str]):
    with Progress("training", 10, shown=False, lines=0.0) as progress:
        progress.say("8 states")
        progress.update(5)
    assert capsys.readouterr().out == ""


def test_shells_complete_commands():
    asked = {"_NATGFN_COMPLETE": "complete_bash", "COMP_WORDS": "natgfn tra", "COMP_CWORD": "1"}
    code = "from natgfn.cli import app; app(prog_name='natgfn')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=os.environ | asked, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["train"]
    assert "--install-completion" in natgfn("--help").stdout


@pytest.mark.parametrize("moment", ["typer", "jax", "numpy"])
def test_ctrl_c_during_imports_is_one_line(moment: str):
    """Also inside of a library, which would turn an exception into its own."""
    code = f"""
import builtins, os, signal, sys
real = builtins.__import__
def importing(name, *rest):
    if name.partition(".")[0] == {moment!r}:
        os.kill(os.getpid(), signal.SIGINT)
    return real(name, *rest)
from natgfn.cli import main
sys.argv = ["natgfn", "train", "env=hypergrid"]
builtins.__import__ = importing
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    assert not Path("runs").exists()


def test_names_that_are_formulas_are_text_in_a_spreadsheet():
    values = np.random.default_rng(0).normal(size=(20, 2))
    pd.DataFrame(values, columns=["=1+1", "b"]).to_csv("data.csv", index=False)
    assert natgfn("dag", "exact", "data.csv", "--out", "run").exit_code == 0
    edges = pd.read_csv("run/edge_marginals.csv", index_col=0)
    assert list(edges.columns) == list(edges.index) == ["'=1+1", "b"]
    assert json.loads(Path("run/summary.json").read_text())["variables"] == ["=1+1", "b"]


@pytest.mark.parametrize("command", ["train env=hypergrid", "dag exact data.csv", "report run"])
def test_an_empty_out_is_one_line(command: str):
    assert_one_line(natgfn(*command.split(), "--out", ""), 2, "--out is empty")
    assert not list(Path().iterdir())


def test_out_is_opened_before_the_work(monkeypatch: pytest.MonkeyPatch):
    def work(*_, **__):
        raise AssertionError("it worked first")

    values = np.random.default_rng(0).normal(size=(20, 2))
    pd.DataFrame(values, columns=["a", "b"]).to_csv("data.csv", index=False)
    monkeypatch.setattr("natgfn.dag.exact_posterior", work)
    assert_one_line(natgfn("dag", "exact", "data.csv", "--out", "data.csv"), 2, "data.csv")


def test_default_folders_are_taken_by_one_run_each(monkeypatch: pytest.MonkeyPatch):
    """Also by two that look at the same moment."""
    assert natgfn("train", *TINY).exit_code == 0
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda p: not p.match("runs/*") and exists(p))
    assert natgfn("train", *TINY, "--json").exit_code == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["hypergrid-1", "hypergrid-2"]
    assert_one_line(natgfn("train", *TINY, "enumerate=true", "max_states=2"), 2, "max_states")
    assert len(list(Path("runs").iterdir())) == 2  # what failed leaves no folder


def test_what_takes_longer_than_a_second_is_said(capsys: pytest.CaptureFixture[str]):
    with Voice().waiting("looking ..."):
        time.sleep(1.3)
    with Voice().waiting("looked"):
        pass
    with Voice(quiet=True).waiting("nothing"):
        time.sleep(1.1)
    assert capsys.readouterr().err == "looking ...\n"
