"""What is on disk: damaged, torn, full, read-only, vanished, or used by two."""

import functools
import json
import shutil
import signal
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import numpy as np

import natgfn as ng
from natgfn import NatgfnError

from .campaign import attack
from .commands import call, one_line, start
from .killing import TRAIN, content, undisturbed

SETTINGS = {"updates": 40, "evaluate_every": 10, "batch": 8, "progress": False}
ENV = ng.envs.Hypergrid(side=4)


def train(folder: Path, **more) -> ng.Run:
    return ng.train(ENV, ng.optim.Adam(0.05), **(SETTINGS | {"out": folder} | more))


@functools.cache
def whole() -> tuple[Path, list[bytes]]:
    """A run that was finished, as others find it before its last checkpoint, and its end."""
    folder = Path(tempfile.mkdtemp(prefix="faults-whole-")) / "run"
    run = train(folder)
    return folder, bits(run)


def bits(run: ng.Run) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(eqx.filter(run.state, eqx.is_array))]


def after(folder: Path, damage: Callable[[Path], None]) -> None:
    """Damage the last checkpoint of a run: the one before is used, and the end is the same."""
    source, end = whole()
    run = shutil.copytree(source, folder / "run")
    before = (run / "checkpoint.npz").read_bytes()
    damage(run / "checkpoint.npz")
    assert bits(train(run, resume=True)) == end
    shutil.rmtree(run)
    shutil.copytree(source, run)
    for name in ("checkpoint.npz", "checkpoint.earlier.npz"):
        damage(run / name)
    left = run / "checkpoint.npz"
    harmless = not left.exists() or left.read_bytes() == before  # without any, it starts anew
    try:
        assert bits(train(run, resume=True)) == end  # a bit that means nothing
    except NatgfnError as error:
        assert not harmless
        assert "\n" not in str(error)


@attack("checkpoint cut at a byte", 100)
def cut(rng: np.random.Generator, folder: Path) -> None:
    def damage(path: Path) -> None:
        path.write_bytes(path.read_bytes()[: int(rng.integers(path.stat().st_size))])

    after(folder, damage)


@attack("checkpoint with a bit flipped", 200)
def flip(rng: np.random.Generator, folder: Path) -> None:
    def damage(path: Path) -> None:
        found = bytearray(path.read_bytes())
        place, bit = divmod(int(rng.integers(8 * len(found))), 8)
        found[place] ^= 1 << bit
        path.write_bytes(found)

    after(folder, damage)


@attack("checkpoint that is something else", 60)
def foreign(rng: np.random.Generator, folder: Path) -> None:
    def text(path: Path) -> None:
        path.write_bytes(rng.bytes(int(rng.integers(5_000))))

    def objects(path: Path) -> None:
        np.savez(path, header=np.array([{"a": 1}], dtype=object), allow_pickle=True)

    def version(path: Path) -> None:
        _change(path, "header", lambda x: np.array(["natgfn-checkpoint-1", x[1]]))

    def shape(path: Path) -> None:
        _change(path, "log_z", lambda x: np.zeros((*x.shape, 3), x.dtype))

    def kind(path: Path) -> None:
        _change(path, "log_z", lambda x: x.astype(np.float64))

    def unknown(path: Path) -> None:
        _change(path, "log_z", lambda x: np.full_like(x, rng.choice([np.nan, np.inf, -np.inf])))

    def absurd(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as file, file.open("header.npy", "w") as member:
            told = {"descr": "<f8", "fortran_order": False, "shape": (2**40, 2**10)}
            np.lib.format.write_array_header_1_0(member, told)

    def bomb(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("header.npy", b"\0" * 2**27)

    def none(path: Path) -> None:
        path.unlink()

    kinds = (text, objects, version, shape, kind, unknown, absurd, bomb, none)
    started = time.monotonic()
    after(folder, kinds[int(rng.integers(len(kinds)))])
    assert time.monotonic() - started < 20


def _change(path: Path, part: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    name = next(name for name in arrays if part in name)
    np.savez(path, **arrays | {name: change(arrays[name])})


@attack("record with a torn or strange last line", 60)
def torn(rng: np.random.Generator, folder: Path) -> None:
    source, end = whole()
    run = shutil.copytree(source, folder / "run")
    path = run / "record.jsonl"
    found = path.read_bytes()
    *_, last = found.splitlines(keepends=True)
    if rng.random() < 0.5:
        path.write_bytes(found[: len(found) - int(rng.integers(1, len(last)))])
        allowed = "before its checkpoint"
    else:
        strange = ["[1]", "{}", "null", '{"step": 41}', "9" * 5_000, "[" * 5_000, "\0" * 9, '{"a"']
        path.write_bytes(found + str(rng.choice(strange)).encode() + b"\n")
        allowed = "is not an evaluation"
    try:
        assert bits(train(run, resume=True)) == end
    except NatgfnError as error:
        assert allowed in str(error), error


@attack("clock that jumps", 10)
def clock(rng: np.random.Generator, folder: Path) -> None:
    """Forwards and backwards by years, between any two looks at it."""
    _, end = whole()
    names = ("time", "monotonic", "perf_counter")
    before = {name: getattr(time, name) for name in names}
    try:
        for name in names:
            setattr(time, name, lambda told=before[name]: told() + float(rng.normal(0, 1e8)))
        assert bits(train(folder / "run")) == end
        assert bits(train(folder / "run", resume=True)) == end
    finally:
        for name, function in before.items():
            setattr(time, name, function)
    lines = (folder / "run" / "record.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines[1:]] == [0, 10, 20, 30, 40]


@attack("disk that is full at some write", 25)
def full(rng: np.random.Generator, folder: Path) -> None:
    """No file may become larger than so many bytes."""
    expected, _ = undisturbed(TRAIN)
    largest = 30_000
    code, text = call(folder, *TRAIN, "--out", "out", limit=int(rng.integers(1_500, largest)))
    if code != 0:
        one_line(code, text)
    kept = any(folder.glob("out/checkpoint*.npz"))
    words = ("resume", "out") if kept else (*TRAIN, "--out", "out")
    code, text = call(folder, *words)
    assert code == 0, text
    assert content(folder / "out") == expected


@attack("folder that may not be written to", 5)
def read_only(rng: np.random.Generator, folder: Path) -> None:
    folder.chmod(0o777)
    (folder / "out").mkdir(mode=0o555)
    code, text = call(folder, *TRAIN, "--out", "out", nobody=True)
    assert "out" in one_line(code, text)
    assert not list((folder / "out").iterdir())


@attack("folder that vanishes", 10)
def vanished(rng: np.random.Generator, folder: Path) -> None:
    _, seconds = undisturbed(TRAIN)
    command = start(folder, *TRAIN, "--out", "out")
    while not (folder / "out" / "record.jsonl").exists() and command.process.is_alive():
        time.sleep(0.002)
    time.sleep(float(rng.uniform(0, seconds / 3)))
    shutil.rmtree(folder / "out", ignore_errors=True)
    code = command.wait()
    if code != 0:
        one_line(code, command.text)


@attack("two processes on one folder", 15)
def two(rng: np.random.Generator, folder: Path) -> None:
    expected, seconds = undisturbed(TRAIN)
    first = start(folder, *TRAIN, "--out", "out")
    time.sleep(float(rng.uniform(0, seconds)))
    second = start(folder, *TRAIN, "--out", "out")
    codes = first.wait(), second.wait()
    assert sorted(codes) == [0, 2], codes
    loser = second if codes[1] == 2 else first
    told = one_line(2, loser.text)
    assert "in use by another process" in told or "already holds a run" in told, told
    assert content(folder / "out") == expected


@attack("two processes without a folder", 5)
def two_without(rng: np.random.Generator, folder: Path) -> None:
    expected, _ = undisturbed(TRAIN)
    both = [start(folder, *TRAIN) for _ in range(2)]
    assert [command.wait() for command in both] == [0, 0]
    found = content(folder / "runs")
    for number in (1, 2):
        name = f"hypergrid-adam-{number}/checkpoint.npz"
        assert found[name] == expected["checkpoint.npz"]


@attack("stopped for a while, and continued", 5)
def suspended(rng: np.random.Generator, folder: Path) -> None:
    expected, seconds = undisturbed(TRAIN)
    command = start(folder, *TRAIN, "--out", "out")
    if command.send(signal.SIGSTOP, float(rng.uniform(0, seconds))):
        time.sleep(1.0)
        command.send(signal.SIGCONT)
    assert command.wait() == 0
    assert content(folder / "out") == expected
