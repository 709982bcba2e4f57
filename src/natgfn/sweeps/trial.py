"""One trial on a worker: an ordinary run in a folder of its own, that goes on where it stopped."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from ..errors import NatgfnError
from ..statespace import StateSpace
from ..training import RECORD, InUse, Record, Setup, describe, run, updates_kept
from ..watch import Line

PATIENCE = 20.0
"""Seconds to wait for the folder of a trial whose worker has been given up."""

_MAPS = 30_000  # of memory; a process may have 65,530, and compiled programs hold some each
_last: list[tuple[str, StateSpace]] = []  # the space that the last trial of this process had


def run_trial(setup: Setup, folder: Path, tell: Callable[[Line], None]) -> dict[str, Any]:
    """The last line of a trial's record, or what went wrong, as `error`."""
    try:
        env = setup.env
        key = f"{type(env).__module__} {describe(env)} {setup.max_states} {setup.enumerate}"
        if _last and _last[0][0] == key:  # listed already, and its programs are compiled
            setup = dataclasses.replace(setup, env=_last[0][1])
        ended = _patiently(setup, folder, tell)
        _last[:] = [(key, ended.setup.env)] if isinstance(ended.setup.env, StateSpace) else []
        return ended.history[-1]
    except Exception as error:  # a trial that fails is reported, and does not stop the others
        return {"error": _one_line(error)}
    finally:
        maps = Path("/proc/self/maps")
        if maps.exists() and maps.read_bytes().count(b"\n") > _MAPS:
            jax.clear_caches()


def _patiently(setup: Setup, folder: Path, tell: Callable[[Line], None]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return run(setup, out=folder, resume=True, progress=False, log=tell)
        except InUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or "no reason given"
    known = isinstance(error, NatgfnError | ValueError)
    return text if known else f"{type(error).__name__}: {text}"


def last_line(setup: Setup, folder: Path) -> Line | None:
    """Of the record of a trial that has been finished; None of any other."""
    if updates_kept(folder) < setup.updates:
        return None
    try:
        _, lines = Record(folder / RECORD).read()
    except NatgfnError:
        return None
    return lines[-1] if lines and lines[-1]["step"] >= setup.updates else None
