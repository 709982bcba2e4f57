"""The paper's experiments, one a file: protocol, run, claims and figures."""

import inspect
import json
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import NatgfnError
from ..report.tables import results_markdown
from ..train.record import git_state, versions
from . import certificates, hypergrid, triangle, untuned
from .study import Study

EXPERIMENTS: dict[str, ModuleType] = {
    "triangle": triangle,
    "hypergrid": hypergrid,
    "untuned": untuned,
    "certificates": certificates,
}
"""Every experiment that `natgfn reproduce` knows."""


def reproduce(
    name: str, *, scale: str = "smoke", seeds: int | None = None, out: str | Path = "results"
) -> Path:
    """Run an experiment and write its results; an interrupted one goes on where it stopped.

    Args:
        name: a key of `EXPERIMENTS`.
        scale: `smoke` takes seconds, `paper` minutes.
        seeds: how many seeds, if not the paper's number.
        out: gets `<name>.<scale>.json`, `.md` and the figures; runs are kept in `out/.work`.

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
    found = experiment.run(scale, seeds, out / ".work" / stem)
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
        (out / f"{stem}.json").write_text(json.dumps(results) + "\n")
        page.write_text(text)
    except OSError as error:
        raise NatgfnError(f"cannot write results to {out}: {error.strerror}") from error
    experiment.figures(results, out, stem)
    return page


def _of_studies(experiment: ModuleType, studies: list[Study]) -> dict[str, Any]:
    """What the comparisons of methods have in common; an experiment may bring its own page."""
    return {
        "configuration": [study.configuration for study in studies],
        "rows": [row for study in studies for row in study.rows],
        "claims": experiment.claims(studies),
        "sweeps": [sweep for study in studies for sweep in study.sweeps],
        "curves": [curve for study in studies for curve in study.curves],
    }
