"""SIGKILL at a moment that nobody chose, and `natgfn resume`: to the bit as if nothing had been."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ALARM = Path(__file__).parents[1] / "paper" / "data" / "alarm.uai"

COMMANDS = {
    "bit sequences": [
        "train", "env=bitsequences", "env.length=24", "env.word=4", "env.modes=5", "source=mixed",
        "batch=4", "updates=60", "evaluate_every=2", "enumerate=false", "policy=network",
        'watch=[{name="Sampled", num=16, test=8, paths=2}]',
    ],
    "graphs": ["dag", "fit", "sachs", "--log", "--updates", "30", "--samples", "200"],
    "many variables": ["dag", "fit", "wide.csv", "--updates", "30", "--samples", "200",
                       "--evidence", "0.02"],
    "factors": ["graphical", "fit", str(ALARM), "--updates", "400", "--samples", "200"],
}  # fmt: skip


def start(folder: Path, *arguments: str) -> subprocess.Popen:
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-m", "natgfn.cli", *arguments]
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL)


def arrays(path: Path) -> dict[str, bytes]:
    with np.load(path) as file:
        return {name: file[name].tobytes() for name in file.files}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_goes_on_to_the_same_end(name, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    values = np.random.default_rng(0).normal(size=(60, 17)).cumsum(axis=1)
    names = ",".join(f"x{i}" for i in range(17))
    np.savetxt(tmp_path / "wide.csv", values, delimiter=",", header=names, comments="")
    assert start(tmp_path, *COMMANDS[name], "--out", "whole").wait() == 0
    process = start(tmp_path, *COMMANDS[name], "--out", "cut")
    try:
        deadline = time.monotonic() + 600
        record = cut / "record.jsonl"
        while not record.exists() or record.read_bytes().count(b"\n") < 5:
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not list(cut.glob("*.csv"))
    shutil.copytree(cut, tmp_path / "as it was")
    assert start(tmp_path, "resume", "cut").wait() == 0
    assert arrays(cut / "checkpoint.npz") == arrays(whole / "checkpoint.npz")
    assert arrays(tmp_path / "as it was" / "checkpoint.npz") != arrays(cut / "checkpoint.npz")
    for table in whole.glob("*.csv"):
        assert (cut / table.name).read_bytes() == table.read_bytes()
