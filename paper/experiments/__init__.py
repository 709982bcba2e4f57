"""The paper's experiments, one a file: protocol, run, claims and figures."""

import inspect
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from natgfn.errors import NatgfnError
from natgfn.training import git_state, numbers, plain, versions

from ..tables import results_markdown
from . import (
    benchmarks,
    bit_sequences,
    certificates,
    dag_blocks,
    dag_sachs,
    dag_synthetic,
    deceptive,
    graphs,
    hypergrid,
    objectives,
    structured,
    triangle,
    untuned,
    walk,
)
from .study import Study

EXPERIMENTS: dict[str, ModuleType] = {
    "triangle": triangle,
    "hypergrid": hypergrid,
    "untuned": untuned,
    "certificates": certificates,
    "deceptive": deceptive,
    "walk": walk,
    "objectives": objectives,
    "dag-synthetic": dag_synthetic,
    "dag-sachs": dag_sachs,
    "dag-blocks": dag_blocks,
    "graphs": graphs,
    "bit-sequences": bit_sequences,
    "benchmarks": benchmarks,
    "structured": structured,
}
"""Every experiment that `natgfn reproduce` knows."""


def reproduce(
    name: str,
    *,
    scale: str = "smoke",
    seeds: int | None = None,
    out: str | Path = "results",
    only: Sequence[str] = (),
) -> Path:
    """Run an experiment and write its results; an interrupted one goes on where it stopped.

    Args:
        name: a key of `EXPERIMENTS`.
        scale: `smoke` takes seconds, `paper` minutes.
        seeds: how many seeds, if not the paper's number.
        out: gets `<name>.<scale>.json`, `.md` and the figures; runs are kept in `out/.work`.
        only: train only the runs whose title has all of these words; for experiments that
            can be run in parts and merge what they find with the results in `out`.

    Returns:
        The path of the Markdown page.
    """
    if name not in EXPERIMENTS:
        raise NatgfnError(f"no experiment {name!r}: expected one of {', '.join(EXPERIMENTS)}")
    experiment = EXPERIMENTS[name]
    if scale not in experiment.SCALES:
        raise NatgfnError(f"no scale {scale!r}: expected one of {', '.join(experiment.SCALES)}")
    if seeds is not None and seeds < 1:
        raise NatgfnError(f"seeds must be at least 1, got {seeds}")
    out, stem = Path(out), f"{name}.{scale}"
    parts: dict[str, Any] = {}
    if "only" in inspect.signature(experiment.run).parameters:
        parts = {"only": only, "earlier": _earlier(out / f"{stem}.json")}
    elif only:
        raise NatgfnError(f"{name} cannot be run in parts: leave out --only")
    found = experiment.run(scale, seeds, out / ".work" / stem, **parts)
    results: dict[str, Any] = {
        "experiment": name,
        "scale": scale,
        "about": inspect.getdoc(experiment),
        "command": shlex.join(["natgfn", *sys.argv[1:]]),
        "versions": versions(),
        "git": git_state(),
        **(found if isinstance(found, dict) else _of_studies(experiment, found)),
    }
    page = out / f"{stem}.md"
    text = getattr(experiment, "page", results_markdown)(results)
    try:
        (out / f"{stem}.json").write_text(json.dumps(plain(results), allow_nan=False) + "\n")
        page.write_text(text)
    except OSError as error:
        raise NatgfnError(f"cannot write results to {out}: {error.strerror}") from error
    experiment.figures(results, out, stem)
    return page


def _earlier(path: Path) -> dict[str, Any] | None:
    """Results to merge with, if there are any."""
    try:
        return numbers(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise NatgfnError(f"cannot merge with {path}: {error}; move it away") from error


def _of_studies(experiment: ModuleType, studies: list[Study]) -> dict[str, Any]:
    """What the comparisons of methods have in common; an experiment may bring its own page."""
    return {
        "configuration": [study.configuration for study in studies],
        "rows": [row for study in studies for row in study.rows],
        "claims": experiment.claims(studies),
        "sweeps": [sweep for study in studies for sweep in study.sweeps],
        "curves": [curve for study in studies for curve in study.curves],
    }
