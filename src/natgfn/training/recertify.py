"""Certificates of a run on disk: at its end in full, and over training for other settings."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np

from ..certify import Effort, certify_states
from ..errors import NatgfnError
from ..optim import at
from ..statespace import StateSpace
from . import checkpoint
from .result import Run
from .store import snapshot_path

BATCHES = (16, 64, 256, 1024)
DAMPINGS = (1e-3, 1e-2, 1e-1, 1.0)
SNAPSHOTS = 9
"""The most points of a curve over training."""


class Point(NamedTuple):
    r"""$\rho_\lambda$ at one moment of training, for one batch size and damping."""

    step: int
    batch: int
    damping: float
    rho: list[float]
    """One a seed."""
    is_bound: bool = False
    """Whether some of these are lower bounds only."""


def own_settings(run: Run) -> tuple[int, float]:
    """The batch size and the damping that the run was trained with."""
    damping = at(run.algorithm.rule.metric()[1], run.state.step[0])
    return run.algorithm.batch, float(damping)


def grid(
    run: Run, batches: Sequence[int] = BATCHES, dampings: Sequence[float] = DAMPINGS
) -> list[tuple[int, float]]:
    """Other batch sizes with the run's damping, and other dampings with its batch size."""
    batch, damping = own_settings(run)
    pairs = [(n, damping) for n in sorted({*batches, batch})]
    # Some numbers of a rule are in float32: 1e-3 is not quite that of the list.
    others = [value for value in dampings if not np.isclose(value, damping)]
    return pairs + [(batch, value) for value in others]


def over_training(run: Run, pairs: Sequence[tuple[int, float]]) -> Iterator[Point]:
    """Certify the snapshots of a run again, for pairs of batch size and damping (`grid`)."""
    if run.folder is None:
        raise NatgfnError("the run was not kept on disk: train with out=...")
    steps = [int(step) for step in run.certificates.get("step", [])]
    kept = [step for step in steps if snapshot_path(run.folder, step).exists()]
    if not kept:
        raise NatgfnError(
            f"{run.folder} has no snapshots to certify: train with watch.Certificate, "
            "or watch.Snapshots"
        )
    chosen = np.unique(np.linspace(0, len(kept) - 1, SNAPSHOTS).round().astype(int))
    share = 1 / (len(chosen) * len(pairs))
    for step in (kept[i] for i in chosen):
        states = checkpoint.load(snapshot_path(run.folder, step), run.state, run.configuration)
        for batch, damping in pairs:
            effort = affordable(run, batch, complete=False, share=share)
            found = certify_states(run.algorithm, states, effort, damping=damping, batch=batch)
            is_bound = bool(np.isinf(found["rho_error"]).any())
            yield Point(step, batch, damping, found["rho"].tolist(), is_bound)


def affordable(
    run: Run, batch: int | None = None, *, complete: bool = True, share: float = 1.0
) -> Effort:
    """All the effort that some minutes allow for the seeds of a run (`Effort.of_minutes`)."""
    algorithm = run.algorithm
    if batch is not None:
        algorithm = dataclasses.replace(algorithm, batch=batch)
    share = share / run.setup.seeds
    return Effort.of_minutes(algorithm, run.flow().forward, complete=complete, share=share)


def full(run: Run, tell: Callable[[], None] | None = None) -> dict[str, np.ndarray]:
    """The certificate of the run as it stands, with all the effort that it takes or some minutes
    allow, in float64. `tell` is called after each product of a sampled reference."""
    return certify_states(run.algorithm, run.state, affordable(run), tell=tell)


def products(run: Run) -> int | None:
    """How often `full` calls `tell` at most; None if it does not."""
    if isinstance(run.algorithm.env, StateSpace):
        return None
    arrays = jax.tree.leaves(eqx.filter(run.flow().forward, eqx.is_inexact_array))
    return run.setup.seeds * affordable(run).products(len(arrays))


def panels(points: list[Point], batch: int, damping: float) -> dict[str, tuple[list[Point], str]]:
    """The points with one damping by batch size, and those with one batch size by damping."""
    by_batch = [p for p in points if np.isclose(p.damping, damping)]
    by_damping = [p for p in points if p.batch == batch]
    return {
        f"damping {damping:g}, by batch size": (by_batch, "batch"),
        f"batch {batch}, by damping": (by_damping, "damping"),
    }


def draw(run: Run, points: list[Point], path: Path) -> Path:
    r"""$\rho_\lambda$ over training: for several batch sizes, and for several dampings."""
    from ..figures import draw_relative_errors  # matplotlib takes long to import

    return draw_relative_errors(panels(points, *own_settings(run)), path)
