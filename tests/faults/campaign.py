"""The attacks by name, and the table of how they went."""

import shutil
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Attack = Callable[[np.random.Generator, Path], None]


@dataclass(frozen=True)
class Entry:
    """An attack, and how often it is tried in a whole campaign."""

    attack: Attack
    times: int


ATTACKS: dict[str, Entry] = {}
"""In the order of the table; modules of this folder add theirs when they are imported."""


def attack(name: str, times: int) -> Callable[[Attack], Attack]:
    """Add an attack to the campaign."""

    def add(function: Attack) -> Attack:
        ATTACKS[name] = Entry(function, times)
        return function

    return add


def campaign(seed: int, scale: float, only: str) -> bool:
    """Try every attack whose name has a word in it; whether all of them were survived."""
    survived_all, started = True, time.monotonic()
    row = "{:<58}{:>6}{:>10}{:>9}"
    print(row.format("attack", "tried", "survived", "seconds"), flush=True)
    totals = np.zeros(2, int)
    for name, entry in ATTACKS.items():
        if only not in name:
            continue
        times, survived, begun = max(1, round(scale * entry.times)), 0, time.monotonic()
        failures = []
        for number in range(times):
            rng = np.random.default_rng([seed, zlib.crc32(name.encode()), number])
            folder = Path(tempfile.mkdtemp(prefix="faults-"))
            try:
                entry.attack(rng, folder)
                survived += 1
                shutil.rmtree(folder, ignore_errors=True)
            except Exception:
                failures.append(f"number {number}, left in {folder}\n{traceback.format_exc()}")
        took = time.monotonic() - begun
        print(row.format(name, times, survived, f"{took:.0f}"), flush=True)
        for failure in failures[:3]:
            print(failure, flush=True)
        totals += times, survived
        survived_all &= survived == times
    took = time.monotonic() - started
    print(row.format(f"all, seed {seed}", *totals.tolist(), f"{took:.0f}"))
    return survived_all
