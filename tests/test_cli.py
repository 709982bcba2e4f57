"""The command line: what it prints, its exit codes, and errors of one line."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import natgfn as ng
import paper
from natgfn.cli import app
from natgfn.training import checkpoint, loop

TINY = ["env=hypergrid", "env.side=3", "batch=4", "updates=4", "evaluate_every=2"]


def natgfn(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def assert_one_line(result: Result, code: int, *words: str) -> None:
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    line = result.stderr.rstrip("\n")
    assert "\n" not in line
    for word in words:
        assert word in line


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, BaseException], None]:
    """Make the training loop raise when it is about to advance for the n-th time."""

    advance = loop.advance

    def after(times: int, error: BaseException) -> None:
        calls = iter(range(times))

        def counted(*arguments: Any) -> Any:
            if next(calls, None) is None:
                raise error
            return advance(*arguments)

        monkeypatch.setattr(loop, "advance", counted)

    return after


def test_train_says_what_came_out_and_where():
    result = natgfn("train", *TINY, "seeds=2")
    assert result.exit_code == 0, result.output
    folder = Path("runs/hypergrid-1")
    lines = (folder / "record.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert f"the run is in {folder}" in result.output
    assert "4 updates, 2 seeds" in result.output
    row = next(line for line in result.output.splitlines() if line.startswith("kl "))
    assert row.split()[1:] == [f"{np.mean(last['kl']):.4g}", f"{np.std(last['kl']):.2g}"]
    assert "rejected" not in result.output
    assert natgfn("train", *TINY).exit_code == 0
    assert Path("runs/hypergrid-2/record.jsonl").exists()


def test_train_reads_a_file_and_settings():
    Path("run.toml").write_text('updates = 9\nbatch = 4\n[env]\nname = "Triangles"\nnodes = 3\n')
    result = natgfn("train", "run.toml", "updates=1", "rule=euclidean", "--out", "here")
    assert result.exit_code == 0, result.output
    header = json.loads(Path("here/record.jsonl").read_text().splitlines()[0])
    assert header["configuration"]["env"] == {"name": "Triangles", "nodes": 3, "beta": 0.2}
    assert header["configuration"]["rule"]["name"] == "Euclidean"
    assert header["configuration"]["updates"] == 1


def test_rejected_steps_are_reported():
    result = natgfn("train", *TINY, "rule=euclidean", "rule.log_z_rate=3e38")
    assert result.exit_code == 0, result.output
    assert "steps were rejected" in result.output


ERRORS = {
    "env=Hypergird": ("env", "Hypergird", "did you mean Hypergrid"),
    "env=hypergrid env.side=1": ("env", "side must be at least 2", "got 1"),
    "env=hypergrid env.side=8.5": ("env.side", "integer", "8.5"),
    "env=hypergrid updates=many": ("updates", "integer", "many"),
    "env=hypergrid updates=0": ("updates must be at least 1", "got 0"),
    "env=hypergrid rule=adam rule.rate=-1": ("rule", "rate", "-1"),
    "env=hypergrid rulez=adam": ("rulez", "did you mean rule"),
    "missing.toml": ("missing.toml", "No such file"),
    "wrong.toml": ("wrong.toml", "not valid TOML", "line 2"),
    "wrong.toml other.toml": ("one configuration file", "other.toml"),
    "": ("needs env", "Hypergrid"),
    "env=triangles env.nodes=3 rule=natural rule.occupancy=factorised": ("coordinates", "sides"),
}


@pytest.mark.parametrize("arguments", ERRORS)
def test_bad_input_is_one_line(arguments: str):
    Path("wrong.toml").write_text("updates = 3\nenv = = 4\n")
    result = natgfn("train", *arguments.split(), "--out", "out")
    assert_one_line(result, 2, "error: ", *ERRORS[arguments])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("resume nowhere", ("nowhere", "No such file")),
        ("resume other", ("other", "is not the record of a run")),
        ("resume foreign", ("foreign", "'Mine'", "resume=True")),
        ("reproduce nothing", ("nothing", "triangle", "hypergrid")),
        ("reproduce triangle --scale huge", ("huge", "smoke", "paper")),
        ("bench nothing", ("nothing", "tabular")),
        ("check natgfn.envs", ("module:Class", "natgfn.envs")),
        ("check no_such_module:Env", ("cannot import no_such_module",)),
        ("check broken:Env", ("cannot import broken", "SyntaxError")),
        ("check natgfn.envs:Nothing", ("natgfn.envs has no 'Nothing'",)),
        ("check natgfn.envs:OnGrid", ("not an environment", "AbstractEnv")),
        ("check natgfn.envs:AbstractEnv", ("abstract", "log_reward")),
        ("check natgfn.envs:Hypergrid side=1", ("Hypergrid", "side must be at least 2")),
        ("check natgfn.envs:Hypergrid sides=4", ("'sides'", "did you mean side")),
    ],
)
def test_bad_arguments_are_one_line(arguments: str, words: tuple[str, ...]):
    Path("broken.py").write_text("def (\n")
    for folder, configuration in {"other": None, "foreign": {"env": {"name": "Mine"}}}.items():
        Path(folder).mkdir()
        header = {"configuration": configuration} if configuration else {}
        (Path(folder) / "record.jsonl").write_text(json.dumps(header) + "\n")
    assert_one_line(natgfn(*arguments.split()), 2, "error: ", *words)


def test_errors_that_are_not_ours_keep_their_traceback(monkeypatch: pytest.MonkeyPatch):
    def buggy(*_: Any, **__: Any) -> None:
        json.loads("{")  # a ValueError, raised outside of natgfn

    monkeypatch.setattr(paper, "reproduce", buggy)
    result = natgfn("reproduce", "triangle")
    assert isinstance(result.exception, json.JSONDecodeError)


def test_resume_ends_where_an_uninterrupted_run_does(interrupt: Callable):
    assert natgfn("train", *TINY, "--out", "straight").exit_code == 0
    interrupt(1, KeyboardInterrupt())
    stopped = natgfn("train", *TINY, "--out", "cut")
    assert_one_line(stopped, 130, "interrupted at update 2", "natgfn resume cut")
    interrupt(1, KeyboardInterrupt())
    assert natgfn("resume", "cut").exit_code == 0

    def metrics(folder: str) -> list[dict[str, Any]]:
        lines = [json.loads(text) for text in Path(folder, "record.jsonl").read_text().splitlines()]
        return [{k: v for k, v in line.items() if k != "seconds"} for line in lines[1:]]

    assert metrics("cut") == metrics("straight")
    with np.load("cut/checkpoint.npz") as cut, np.load("straight/checkpoint.npz") as straight:
        assert all(np.array_equal(cut[name], straight[name]) for name in straight.files)


def test_interrupted_before_anything_was_kept(monkeypatch: pytest.MonkeyPatch):
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "decide", stop)
    result = natgfn("train", *TINY, "--out", "cut")
    assert_one_line(result, 130, "before the first checkpoint")


def test_an_interrupted_experiment_goes_on_with_the_same_command(monkeypatch: pytest.MonkeyPatch):
    def half(name: str, *, out: Path, **_: Any) -> None:
        ng.train(ng.envs.Hypergrid(side=3), updates=1, batch=4, out=out / "run", progress=False)
        raise KeyboardInterrupt

    monkeypatch.setattr(paper, "reproduce", half)
    result = natgfn("reproduce", "triangle", "--out", "results")
    assert_one_line(result, 130, "interrupted at update 1", "same command again")


def test_a_full_disk_keeps_the_last_checkpoint(monkeypatch: pytest.MonkeyPatch):
    save, calls = np.savez, []

    def full(*arguments: Any, **arrays: Any) -> None:
        calls.append(1)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(*arguments, **arrays)

    monkeypatch.setattr(checkpoint.np, "savez", full)
    result = natgfn("train", *TINY, "--out", "out")
    assert_one_line(result, 2, "error: ", "No space left on device", "out/checkpoint.npz")
    with np.load("out/checkpoint.npz") as kept:
        assert kept[".step"].tolist() == [2]
    assert not list(Path("out").glob("*.partial"))
    monkeypatch.setattr(checkpoint.np, "savez", save)
    assert natgfn("resume", "out").exit_code == 0


def test_a_folder_that_cannot_be_written():
    Path("file").write_text("in the way")
    result = natgfn("train", *TINY, "--out", "file/run")
    assert_one_line(result, 2, "error: ", "file/run", "Not a directory")


def test_a_folder_that_holds_a_run_is_not_overwritten():
    assert natgfn("train", *TINY, "--out", "run").exit_code == 0
    before = Path("run/record.jsonl").read_bytes()
    assert_one_line(natgfn("train", *TINY, "--out", "run"), 2, "error: ", "already holds a run")
    assert Path("run/record.jsonl").read_bytes() == before


def test_check_passes_and_fails_with_its_exit_code(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(Path(__file__).parents[1])
    good = natgfn("check", "natgfn.envs:Hypergrid", "side=4")
    assert good.exit_code == 0
    assert all(line.startswith("ok ") for line in good.stdout.splitlines()[:-1])
    bad = natgfn("check", "tests.unnormalised_backward:UnnormalisedBackward")
    assert bad.exit_code == 1
    failed = [line for line in bad.stdout.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 1
    assert "P_B sums to 0.1944" in failed[0]


def test_version():
    result = natgfn("--version")
    assert (result.exit_code, result.output) == (0, "natgfn 0.2.0\n")
