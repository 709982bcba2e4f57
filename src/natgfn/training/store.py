"""The folder of a run: its record, its checkpoint, and the arrays it was made from."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from ..algorithm import TrainState, all_finite
from ..errors import NatgfnError
from ..watch import Line
from . import checkpoint
from .files import earlier_of
from .record import Record, arrays_of, digest
from .setup import Setup, decide

RECORD = "record.jsonl"
"""The file of a run's folder with its settings, then a line for every look."""

CHECKPOINT = "checkpoint.npz"
"""The file of a run's folder with its last state."""

ARRAYS = "arrays.npz"
"""The file of a run's folder with the arrays that it was made from."""


class InUse(NatgfnError):
    """Another process has the folder of a run."""


class Store:
    """Where a run is kept."""

    def __init__(self, folder: Path, setup: Setup):
        self.folder, self.configuration = folder, setup.configuration()
        self.arrays = arrays_of(setup)
        self.record, self.checkpoint = Record(folder / RECORD), folder / CHECKPOINT

    def open(self, states: TrainState, resume: bool) -> tuple[TrainState, list[Line], str]:
        """The last good checkpoint, the lines up to it, and a remark; or `states` and none."""
        if has_checkpoint(self.folder):
            if not resume:
                raise NatgfnError(
                    f"{self.folder} already holds a run: resume it, or choose another folder"
                )
            states, remark = self.last(states)
            if remark:  # the next checkpoint must not take the place of the good one
                earlier_of(self.checkpoint).replace(self.checkpoint)
            return states, self.record.rewind(int(states.step[0])), remark
        if self.arrays:
            checkpoint.write(self.folder / ARRAYS, self.arrays)
        self.record.start(self.configuration)
        return states, [], ""

    def last(self, like: TrainState) -> tuple[TrainState, str]:
        """The last good checkpoint, and a remark if it is not the last one that was written."""
        try:
            return self._load(self.checkpoint, like), ""
        except checkpoint.Damaged as error:
            earlier = earlier_of(self.checkpoint)
            if not earlier.exists():
                raise
            states = self._load(earlier, like)
            return states, f"{error}; going on from the one before, update {states.step[0]}"

    def _load(self, path: Path, like: TrainState) -> TrainState:
        states = checkpoint.load(path, like, self.configuration, continues=_continues(self.record))
        if not all_finite(states):
            raise checkpoint.Damaged(
                f"{path} holds numbers that are not finite, which natgfn never writes"
            )
        return states

    def keep(self, states: TrainState, line: Line, *, snapshot: bool) -> None:
        if snapshot:
            kept = snapshot_path(self.folder, line["step"])
            kept.parent.mkdir(exist_ok=True)
            checkpoint.save(kept, states, self.configuration)
        # The record first: a crash in between leaves a line too many, which `rewind` drops.
        self.record.append(line)
        checkpoint.save(self.checkpoint, states, self.configuration, earlier=True)


def prolong(folder: Path, setup: Setup) -> None:
    """Let the run in a folder go on as another one: with more updates, say, or other rates.

    One file changes, at once, so the run can be resumed whenever this is stopped: as the one that
    it was, or as the one that it becomes, which starts from the checkpoint that is there.
    """
    decided, _ = decide(setup)
    record = Record(folder / RECORD)
    with locked(folder):
        before = checkpoint.fingerprint(record.read()[0]["configuration"])
        record.prolong(decided.configuration(), [*_continues(record), before])


def _continues(record: Record) -> list[str]:
    """The fingerprints of the configurations that a run had before."""
    found = record.read()[0].get("continues", [])
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def has_checkpoint(folder: Path) -> bool:
    """Whether a run has been kept in a folder, whole or damaged."""
    path = folder / CHECKPOINT
    return path.exists() or earlier_of(path).exists()


def updates_kept(folder: Path) -> int:
    """Updates after which the run in a folder was last saved; -1 if no whole checkpoint is there.

    Its record may be a line ahead, if it was killed between the two.
    """
    try:
        steps = checkpoint.read(folder / CHECKPOINT).get(".step", np.array(-1))
    except checkpoint.Damaged:
        return -1
    return int(np.min(steps))


@contextmanager
def locked(folder: Path | None) -> Iterator[None]:
    """Make the folder of a run, and keep other processes out of it until the run has ended."""
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "lock", blocking=False)
        lock.acquire()
    except Timeout as error:
        raise InUse(
            f"{folder} is in use by another process: wait until it has ended, or choose another "
            "folder"
        ) from error
    except OSError as error:
        raise NatgfnError(f"cannot make the folder {folder}: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def snapshot_path(folder: Path, step: int) -> Path:
    """Where the state of a run after so many updates is kept, if a watcher asked for it."""
    return folder / "snapshots" / f"{step:08d}.npz"


def arrays_in(folder: Path) -> dict[str, np.ndarray]:
    """The arrays that a run was made from, by their hash, which is checked."""
    path = folder / ARRAYS
    if not path.exists():
        return {}
    found = checkpoint.read(path)
    for name, array in found.items():
        if digest(array) != name:
            raise NatgfnError(f"{path}: the array {name} is not what the run was made from")
    return found


def read_header(folder: Path) -> dict[str, Any]:
    """The configuration of a run and what made it."""
    return Record(folder / RECORD).read()[0]
