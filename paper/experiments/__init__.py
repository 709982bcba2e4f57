"""The paper's experiments, one a file: protocol, run, claims and figures."""

import inspect
import json
import shlex
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
            Most experiments take over what the results there have, and train what is missing:
            move those away to make everything again.
            Runs of the Transformer are also packed into `out/checkpoints`, and go on from there.
        only: train only the runs whose title has all of these words; for experiments that
            can be run in parts.

    Returns:
        The path of the Markdown page.
    """
    check(name, scale, seeds)
    experiment = EXPERIMENTS[name]
    out, stem = Path(out), f"{name}.{scale}"
    takes, parts = inspect.signature(experiment.run).parameters, {}
    if only and "only" not in takes:
        raise NatgfnError(f"{name} cannot be run in parts: leave out --only")
    if "only" in takes:
        parts["only"] = only
    if "checkpoints" in takes:
        parts["checkpoints"] = out / "checkpoints"
    earlier = _earlier(out / f"{stem}.json") if "earlier" in takes else None
    if "earlier" in takes:
        parts["earlier"] = earlier
    found = experiment.run(scale, seeds, out / ".work" / stem, **parts)
    found = found if isinstance(found, dict) else _of_studies(experiment, found)
    command = ["natgfn", "reproduce", name, "--scale", scale, "--out", str(out)]
    command += [] if seeds is None else ["--seeds", str(seeds)]
    command += [word for one in only for word in ("--only", one)]
    results: dict[str, Any] = {
        "experiment": name,
        "scale": scale,
        "about": inspect.getdoc(experiment),
        **_made(shlex.join(command), found, earlier),
        **found,
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


def check(name: str, scale: str, seeds: int | None) -> None:
    """Raise an error if there is no such experiment, or not of that size."""
    if name not in EXPERIMENTS:
        raise NatgfnError(f"no experiment {name!r}: expected one of {', '.join(EXPERIMENTS)}")
    scales = EXPERIMENTS[name].SCALES
    if scale not in scales:
        raise NatgfnError(f"no scale {scale!r}: expected one of {', '.join(scales)}")
    if seeds is not None and seeds < 1:
        raise NatgfnError(f"seeds must be at least 1, got {seeds}")


def _earlier(path: Path) -> dict[str, Any] | None:
    """Results to merge with, if there are any."""
    try:
        return numbers(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise NatgfnError(f"cannot merge with {path}: {error}; move it away") from error


def _made(command: str, found: dict[str, Any], earlier: dict[str, Any] | None) -> dict[str, Any]:
    """The command and versions of the last part that found something new, and of those before."""
    now = {"command": command, "versions": versions(), "git": git_state()}
    if earlier is None:
        return now
    last = {key: earlier[key] for key in now}
    before = earlier.get("before", [])
    written = json.loads(json.dumps(plain(found)))  # keys are text there
    if any(written[key] != plain(earlier.get(key)) for key in found if key != "claims"):
        before = [part for part in [*before, last] if part["command"] != command]
        last = now
    return last | ({"before": before} if before else {})


def _of_studies(experiment: ModuleType, studies: list[Study]) -> dict[str, Any]:
    """What the comparisons of methods have in common; an experiment may bring its own page."""
    return {
        "configuration": [study.configuration for study in studies],
        "rows": [row for study in studies for row in study.rows],
        "claims": experiment.claims(studies),
        "sweeps": [sweep for study in studies for sweep in study.sweeps],
        "curves": [curve for study in studies for curve in study.curves],
    }
