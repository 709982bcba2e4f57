"""Signals at random moments: what goes on afterwards ends as if nothing had been."""

import functools
import json
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from .campaign import attack
from .commands import call, start

TRAIN = (
    *("train", "env=hypergrid", "env.side=6", "rule=adam", "batch=16", "updates=3000"),
    *("evaluate_every=60", "source=replay", "seed=3"),
)
FIT = ("dag", "fit", "data.csv", "--updates", "60", "--samples", "100")
SWEEP = (
    *("sweep", "env=hypergrid", "env.side=5", "rule=adam", "rule.rate=0.01,0.1", "batch=16"),
    *("updates=2000", "evaluate_every=50", "--processes", "2"),
)
REPRODUCE = ("reproduce", "triangle", "--scale", "smoke", "--seeds", "1")


def data(folder: Path) -> None:
    """A table of three columns for `dag fit`."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 3)).cumsum(axis=1)
    lines = ["a,b,c", *(",".join(f"{x:.6f}" for x in row) for row in rows)]
    (folder / "data.csv").write_text("\n".join(lines) + "\n")


def content(folder: Path) -> dict[str, Any]:
    """Everything in a folder that does not depend on the time of day, by path."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == "checkpoint.npz":
            with np.load(path) as file:
                found[name] = {key: file[key].tobytes() for key in file.files}
        elif path.name == "record.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
            found[name] = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
        elif path.suffix == ".csv" and path.name in ("edge_marginals.csv", "path_marginals.csv"):
            found[name] = path.read_text()
        elif path.name in ("settings.json", "triangle.smoke.json"):
            found[name] = _timeless(json.loads(path.read_text()))
    return found


def _timeless(value: Any) -> Any:
    told = ("seconds", "versions", "git", "command", "ms_per_update")
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if not any(x in k for x in told)}
    return [_timeless(part) for part in value] if isinstance(value, list) else value


@functools.cache
def undisturbed(words: tuple[str, ...]) -> tuple[dict[str, Any], float]:
    """What a command leaves when nobody disturbs it, and the seconds that it takes."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        data(folder)
        call(folder, *words, "--out", "warm")  # compiles
        started = time.monotonic()
        code, text = call(folder, *words, "--out", "out")
        assert code == 0, text
        return content(folder / "out"), time.monotonic() - started


def disturbed(
    rng: np.random.Generator, folder: Path, words: tuple[str, ...], *, resume: bool, kills: int = 1
) -> None:
    """Kill a command, or what goes on with it, at random moments; then let it end, and compare."""
    expected, seconds = undisturbed(words)
    data(folder)
    again = False
    for _ in range(kills):
        command = start(folder, *_next(folder, words, resume=resume and again))
        command.send(signal.SIGKILL, float(rng.uniform(0, seconds)))
        command.wait()
        again = True
    for _ in range(3):
        code, text = call(folder, *_next(folder, words, resume=resume))
        if code == 0:
            break
    assert code == 0, text[-2000:]
    found = content(folder / "out")
    assert found.keys() == expected.keys(), (found.keys(), expected.keys())
    different = [name for name in expected if found[name] != expected[name]]
    assert not different, different


def _next(folder: Path, words: tuple[str, ...], *, resume: bool) -> tuple[str, ...]:
    """`natgfn resume` where there is something to go on with; else the command itself."""
    kept = resume and any(folder.glob("out/checkpoint*.npz"))
    return ("resume", "out") if kept else (*words, "--out", "out")


@attack("kill train, then resume", 60)
def kill_train(rng: np.random.Generator, folder: Path) -> None:
    disturbed(rng, folder, TRAIN, resume=True)


@attack("kill resume, three times over", 30)
def kill_resume(rng: np.random.Generator, folder: Path) -> None:
    disturbed(rng, folder, TRAIN, resume=True, kills=3)


@attack("kill dag fit, then resume", 40)
def kill_fit(rng: np.random.Generator, folder: Path) -> None:
    disturbed(rng, folder, FIT, resume=True)


@attack("kill sweep, then the same command", 40)
def kill_sweep(rng: np.random.Generator, folder: Path) -> None:
    disturbed(rng, folder, SWEEP, resume=False)


@attack("kill reproduce, then the same command", 30)
def kill_reproduce(rng: np.random.Generator, folder: Path) -> None:
    disturbed(rng, folder, REPRODUCE, resume=False)


@attack("kill workers of a sweep", 15)
def kill_workers(rng: np.random.Generator, folder: Path) -> None:
    expected, seconds = undisturbed(SWEEP)
    command = start(folder, *SWEEP, "--out", "out")
    for _ in range(3):
        time.sleep(float(rng.uniform(0, seconds / 2)))
        if workers := _workers(command.pid):
            os.kill(int(rng.choice(workers)), signal.SIGKILL)
    assert command.wait() == 0, command.text[-2000:]
    found = content(folder / "out")
    assert [name for name in expected if found[name] != expected[name]] == []


def _workers(pid: int) -> list[int]:
    """The children of a process that Dask has spawned as workers."""
    import psutil

    try:
        children = psutil.Process(pid).children(recursive=True)
        return [p.pid for p in children if any("spawn_main" in word for word in p.cmdline())]
    except psutil.Error:
        return []


def stop(rng: np.random.Generator, folder: Path, number: int, expected_code: int) -> None:
    """A signal that lets a process finish: it says how to go on, and nothing is lost."""
    expected, seconds = undisturbed(TRAIN)
    command = start(folder, *TRAIN, "--out", "out")
    record = folder / "out" / "record.jsonl"
    while not any(record.parent.glob("checkpoint*.npz")) and command.process.is_alive():
        time.sleep(0.002)
    sent = command.send(number, float(rng.uniform(0, seconds / 2)))
    code = command.wait()
    assert code in ((expected_code,) if sent else (expected_code, 0)) or record_ended(record), code
    if code == expected_code and not record_ended(record):
        assert "go on: natgfn resume out" in command.text, command.text
        assert "Traceback" not in command.text, command.text
    code, text = call(folder, "resume", "out")
    assert code == 0, text
    assert content(folder / "out") == expected


def record_ended(record: Path) -> bool:
    """Whether a run had made its last update before a signal reached it."""
    return json.loads(record.read_text().splitlines()[-1])["step"] == 3000


@attack("Ctrl-C, then resume", 15)
def interrupt(rng: np.random.Generator, folder: Path) -> None:
    stop(rng, folder, signal.SIGINT, 130)


@attack("SIGTERM, then resume", 15)
def terminate(rng: np.random.Generator, folder: Path) -> None:
    stop(rng, folder, signal.SIGTERM, 143)


@attack("Ctrl-C while it starts", 10)
def interrupt_early(rng: np.random.Generator, folder: Path) -> None:
    command = start(folder, *TRAIN, "--out", "out")
    command.send(signal.SIGINT, float(rng.uniform(0, 1.0)))
    code = command.wait()
    assert code in (130, -signal.SIGINT, 0), code
    assert len(command.text.splitlines()) < 4 or code == 0, command.text
