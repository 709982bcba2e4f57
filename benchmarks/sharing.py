"""Batches that several processes share: how much faster two are than one, with a core each."""

import os
import socket
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import NamedTuple

import jax

from natgfn.algorithm import mesh_of
from natgfn.envs import DeceptiveGrid
from natgfn.errors import NatgfnError
from natgfn.optim import AbstractRule, SampleSpace
from natgfn.policies import AbstractDesign, Table
from natgfn.statespace import enumerate_states

from .measure import Measurement, Timer, Walker, inform
from .neural import BASE, IN_SAMPLE_SPACE, STOP


class Task(NamedTuple):
    """What is trained, and how large a grid and a batch are."""

    rule: AbstractRule
    design: AbstractDesign
    side: int
    batch: int


CASES: dict[str, tuple[AbstractRule, AbstractDesign]] = {
    "a table in sample space": (SampleSpace(), Table()),
    "a network in sample space": (IN_SAMPLE_SPACE, Walker(STOP)),
    "a network with Adam": (BASE, Walker(STOP)),
}
"""The default of this grid, and what `bench neural` measures."""


def bench_sharing(quick: bool = False) -> int:
    """Measure every limit; 0 if all hold, 1 otherwise."""
    good = [found.report() for found in _measurements(quick)]
    return 0 if all(good) else 1


def _measurements(quick: bool) -> Iterator[Measurement]:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise NatgfnError("bench sharing needs two cores, and has one: run it elsewhere")
    side, batch, rounds, turn = (16, 16, 1, 0.1) if quick else (128, 256, 9, 2.0)
    for name, (rule, design) in CASES.items():
        task, what = Task(rule, design, side, batch), f"H={side}, batch {batch}, {name}"
        with (
            _started(task, cores[:1]) as one,
            _started(task, cores[:1], shared=True) as same,
            _started(task, cores[:2]) as two,
        ):
            alone, overhead, share = _in_turn(one, same, two, rounds=rounds, turn=turn)
        inform(f"{what}: an update", f"{1e3 * alone:.3g} ms")
        yield Measurement(f"{what}: shared with nobody / alone", overhead, 1.05, "x")
        yield Measurement(f"{what}: two processes / one", 1 / share, 1.5, "x", True)


def _in_turn(
    base: list[Connection], *others: list[Connection], rounds: int, turn: float
) -> tuple[float, ...]:
    """Seconds of an update of the first, and how many times longer each other takes: medians."""
    everyone = (base, *others)
    updates = max(1, int(turn / max(_seconds(processes, 3) for processes in everyone)))
    found = [[_seconds(processes, updates) for processes in everyone] for _ in range(rounds)]
    ratios = ([row[k] / row[0] for row in found] for k in range(1, len(everyone)))
    return statistics.median(row[0] for row in found), *map(statistics.median, ratios)


def _seconds(processes: list[Connection], updates: int) -> float:
    """Of an update, in processes that make it together: the slowest counts."""
    for process in processes:
        process.send(updates)
    return max(process.recv() for process in processes)


@contextmanager
def _started(task: Task, cores: list[int], *, shared: bool = False) -> Iterator[list[Connection]]:
    """A process on each of some cores, ready to be timed; they share batches if there are many."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with ExitStack() as stack:
        ends = []
        for number, core in enumerate(cores):
            here, there = get_context("spawn").Pipe()
            given = (there, task, address, len(cores), number, core, shared or len(cores) > 1)
            process = get_context("spawn").Process(target=_work, args=given, daemon=True)
            process.start()
            there.close()
            stack.callback(process.kill)
            ends.append(here)
        for end in ends:
            end.recv()
        yield ends


def _work(
    pipe: Connection, task: Task, address: str, count: int, number: int, core: int, shared: bool
) -> None:
    os.sched_setaffinity(0, {core})
    os.environ["NPROC"] = "1"
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Gloo tells who is connected
    if count > 1:
        jax.distributed.initialize(address, count, number, coordinator_bind_address=address)
    mesh = mesh_of(count) if shared else None
    space = enumerate_states(DeceptiveGrid(side=task.side))
    timer = Timer(space, task.rule, task.batch, task.design, mesh=mesh)
    timer.seconds(1)
    pipe.send("ready")
    while updates := pipe.recv():
        pipe.send(timer.seconds(updates))
