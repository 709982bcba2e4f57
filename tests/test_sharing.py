"""Batches that several devices share: the same run, on four devices, and in two processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from shared import CASES
from typer.testing import CliRunner

import natgfn as ng
from natgfn.cli import app
from natgfn.sources import Messages

HERE = Path(__file__).parent
ROUNDING, TOLERANCE = 1e-8, 1e-4
"""In double precision, after five updates; and of a solver that stops at a tolerance."""

GRID = ng.envs.Hypergrid(side=4)


def on_four_devices(*cases: str) -> dict[str, tuple[float, int]]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, str(HERE / "shared.py"), *cases],
        env=os.environ | {"XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


QUICK = ("algebra", "table")


@pytest.fixture(scope="module")
def quick() -> dict[str, tuple[float, int]]:
    return on_four_devices(*QUICK)


@pytest.mark.parametrize("case", QUICK)
def test_four_devices_make_the_same_run(quick, case):
    """Trajectories and all whole numbers are equal, others up to rounding."""
    far, different = quick[case]
    assert far < ROUNDING
    assert different == 0


@pytest.mark.slow
def test_every_rule_objective_and_source_makes_the_same_run_on_four_devices():
    found = on_four_devices(*(name for name in CASES if name not in QUICK))
    solved, _ = found.pop("conjugate gradients")
    assert solved < TOLERANCE
    assert {name: x for name, x in found.items() if x[0] >= ROUNDING or x[1]} == {}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"devices": 0}, "devices must be at least 1, got 0"),
        ({"devices": 3}, "devices must be a number that divides batch=8, got 3"),
        ({"devices": 16}, "devices must be a number that divides batch=8, got 16"),
        ({"devices": 8}, "devices=8, and JAX has 1"),
    ],
)
def test_devices_that_cannot_share_a_batch_are_one_line(settings, told):
    with pytest.raises(ValueError, match=told):
        ng.train(GRID, batch=8, progress=False, **settings)


def test_no_batch_cannot_be_shared():
    model = ng.envs.Assignments(ng.graphical.ising(nx.path_graph(2), 0.1))
    with pytest.raises(ValueError, match="Messages draws no batch that 2 devices could share"):
        ng.train(model, source=Messages(), devices=2, progress=False)


@pytest.mark.parametrize("processes", ["0", "-1", "3", "16"])
def test_processes_that_cannot_share_a_batch_are_one_line(processes):
    words = ["train", "env=hypergrid", "batch=8", "--processes", processes]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert result.output.count("\n") == 1
    assert "--processes must be" in result.output
    assert f"got {processes}" in result.output


def test_a_sweep_is_not_resumed_by_processes_that_share_batches(tmp_path):
    (tmp_path / ng.sweeps.STUDY).touch()
    result = CliRunner().invoke(app, ["resume", str(tmp_path), "--processes", "2"])
    assert result.exit_code == 2
    assert "leave --processes out" in result.output


TRAIN = [
    "train",
    "env=hypergrid",
    "env.side=4",
    "batch=8",
    "updates=12",
    "evaluate_every=4",
    "seeds=2",
]


def start(folder: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "natgfn.cli", *words],
        cwd=folder,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    """What it has printed, if it ended well."""
    told, errors = process.communicate()
    assert process.returncode == 0, errors
    return told


def arrays(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "checkpoint.npz") as file:
        return {name: file[name] for name in file.files}


def assert_same_run(one: Path, other: Path) -> None:
    found, expected = arrays(other), arrays(one)
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        if x.dtype.kind == "f":
            np.testing.assert_allclose(found[name], x, rtol=1e-3, atol=1e-4)
        else:
            np.testing.assert_array_equal(found[name], x)
    lines = (other / "record.jsonl").read_text().splitlines()
    steps = [json.loads(line).get("step") for line in lines]
    assert steps == [None, 0, 4, 8, 12]  # each line once


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    finished(start(folder, *TRAIN, "--out", "run"))
    return folder / "run"


@pytest.mark.slow
def test_two_processes_make_the_same_run(alone, tmp_path):
    """And write it once; what they print is what one would."""
    told = finished(start(tmp_path, *TRAIN, "--out", "run", "--processes", "2", "--json"))
    assert json.loads(told)["updates"] == 12
    assert_same_run(alone, tmp_path / "run")


@pytest.mark.slow
def test_srun_starts_the_processes_itself(alone, tmp_path):
    """With the variables that Slurm sets, on this machine."""
    common = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_NTASKS": "2",
    }
    words = [*TRAIN, "--out", "run", "--processes"]
    wrong = start(tmp_path, *words, "4", **common, SLURM_PROCID="0", SLURM_LOCALID="0")
    assert "--processes must be 2, as srun has it, got 4" in wrong.communicate()[1]
    tasks = [
        start(tmp_path, *words, "2", "-q", **common, SLURM_PROCID=k, SLURM_LOCALID=k) for k in "01"
    ]
    for task in tasks:
        finished(task)
    assert_same_run(alone, tmp_path / "run")


LONG = [*TRAIN, "updates=100000", "--processes", "2", "--out", "run"]


def begun(folder: Path, process: subprocess.Popen[str], lines: int = 2) -> list[int]:
    """Wait until the record has so many lines; the processes that this one has started."""
    deadline, record = time.monotonic() + 300, folder / "run" / "record.jsonl"
    while not record.exists() or record.read_bytes().count(b"\n") < lines:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(number) for number in children.read_text().split()]


def has_ended(number: int) -> bool:
    status = Path(f"/proc/{number}/status")
    return not status.exists() or "State:\tZ" in status.read_text()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_process_that_dies_is_one_line(tmp_path):
    process = start(tmp_path, *LONG)
    (other,) = begun(tmp_path, process)
    os.kill(other, signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == 2
    assert errors.splitlines()[-1].startswith("error: one of the 2 processes has ended, by SIGKILL")
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_says_how_to_go_on_and_leaves_nobody_behind(tmp_path, number, code):
    process = start(tmp_path, *LONG)
    (other,) = begun(tmp_path, process)
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == code
    assert "go on: natgfn resume run --processes 2" in errors
    assert has_ended(other)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_killed_and_resumed_is_the_same_to_the_bit(tmp_path):
    """And those that the first process has started do not outlive it."""
    words = [*TRAIN, "updates=400", "--processes", "2"]
    finished(start(tmp_path, *words, "--out", "whole"))
    process = start(tmp_path, *words, "--out", "run")
    (other,) = begun(tmp_path, process, lines=10)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while not has_ended(other):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    finished(start(tmp_path, "resume", "run", "--processes", "2"))
    found, expected = arrays(tmp_path / "run"), arrays(tmp_path / "whole")
    assert {name: x.tobytes() for name, x in found.items()} == {
        name: x.tobytes() for name, x in expected.items()
    }
