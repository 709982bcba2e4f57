"""Sweeps: how much faster two processes are than one, and what a trial costs beside its run."""

import multiprocessing
import os
import tempfile
import time
from pathlib import Path

from natgfn.envs import Hypergrid
from natgfn.optim import Adam
from natgfn.sweeps import Study, run_study, run_trial, vary
from natgfn.training import Setup

from .measure import Measurement, inform


def bench_sweep(quick: bool = False) -> int:
    """Measure every limit; 0 if all hold, 1 otherwise."""
    good = [found.report() for found in _measurements(quick)]
    return 0 if all(good) else 1


def _measurements(quick: bool):
    setup = Setup(Hypergrid(side=16), Adam(0.01), updates=300 if quick else 12_000, seeds=8)
    study = vary(setup, {})
    alone, narrow, together = _in_turn(study), _in_turn(study, cores=1), _swept(study, 2)
    inform("8 equal trials, one after the other in one process", f"{alone:.3g} s")
    inform("the same on one core", f"{narrow:.3g} s")
    inform("8 equal trials in a sweep of two processes", f"{together:.3g} s")
    # A process has more than one thread: alone on the machine it is more than half as fast.
    inform("two processes / one on one core", f"{narrow / together:.3g}x")
    yield Measurement("8 equal trials, two processes / one", alone / together, 1.8, "x", True)

    tiny = Setup(Hypergrid(side=3), Adam(0.01), updates=2, batch=4, seeds=50 if quick else 1_000)
    study = vary(tiny, {})
    alone, swept = _in_turn(study), _swept(study, 1)
    each = 1e3 / len(study.trials)
    inform(f"{len(study.trials):,} tiny trials: a run", f"{alone * each:.3g} ms")
    what = f"{len(study.trials):,} tiny trials: what a sweep adds to each"
    yield Measurement(what, (swept - alone) * each, 50.0, " ms")


def _in_turn(study: Study, cores: int | None = None) -> float:
    """Seconds of a new process that runs all trials itself, on so many cores, or on all."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        process = multiprocessing.get_context("spawn").Process(
            target=_run_all, args=(study, folder, cores)
        )
        process.start()
        process.join()
        if process.exitcode:
            raise RuntimeError("the trials that run one after the other have failed")
        return time.perf_counter() - started


def _run_all(study: Study, folder: str, cores: int | None) -> None:
    if cores is not None:  # before JAX starts its threads
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    for trial in study.trials:
        if "error" in (line := run_trial(trial.setup, Path(folder) / trial.name, lambda _: None)):
            raise RuntimeError(line["error"])


def _swept(study: Study, processes: int) -> float:
    """Seconds of a sweep, its workers' start included."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        found = run_study(study, Path(folder) / "sweep", processes=processes, progress=False)
        if found.failed:
            raise RuntimeError(found.failed[0][1])
        return time.perf_counter() - started
