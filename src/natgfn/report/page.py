"""One HTML file about one or several runs: everything inside, escaped, and nothing fetched."""

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import MissingExtra, NatgfnError
from . import charts
from .subject import HeatMap, Subject, seen

PAGE = "report.html"
"""The name of the page in the folder of a run."""

CELLS = 120_000
"""The most cells of all maps of a page."""


def write_page(subjects: Sequence[Subject], path: str | Path) -> Path:
    """Write a page that compares the subjects, or shows the only one.

    Raises:
        NatgfnError: the file cannot be written, or jinja2 is not installed.
    """
    path = Path(path)
    text = render(subjects)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NatgfnError(f"cannot write the page {path}: {error.strerror}") from error
    return path


def render(subjects: Sequence[Subject]) -> str:
    """The page as text."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ModuleNotFoundError as error:
        raise MissingExtra(error, "report") from error
    here = files("natgfn.report")
    scripts = [(here / name).read_text() for name in ("drawing.js", "graph.js", "page.js")]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((here / "page.html").read_text())
    sections, left_out = _figures(subjects)
    return template.render(
        title=subjects[0].name if len(subjects) == 1 else f"{len(subjects)} runs compared",
        subjects=subjects,
        style=(here / "page.css").read_text(),
        scripts=scripts,
        hashes=[_hash(script) for script in scripts],
        sections=sections,
        left_out=left_out,
        last=_last_values(subjects),
        settings=_side_by_side([subject.settings for subject in subjects]),
        versions=_side_by_side([subject.versions for subject in subjects]),
        data={
            "names": [subject.name for subject in subjects],
            "figures": [figure for _, _, figures in sections for figure in figures],
        },
    )


def _hash(script: str) -> str:
    """What the page's policy on content knows a script by: no other script is run."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _figures(subjects: Sequence[Subject]) -> tuple[list[tuple[str, str, list[dict]]], int]:
    """The charts in sections, each with a title and an introduction; and how many did not fit."""
    drawn = [(run, one) for run, one in enumerate(subjects) if one.graph is not None]
    graphs = [charts.graph(one, run, one.graph) for run, one in drawn if one.graph is not None]
    laws = [figure for figure in (charts.law(subjects),) if figure is not None]
    maps, cells, left_out = [], 0, 0
    for run, subject in enumerate(subjects):
        for number, shown in enumerate(subject.maps):
            before = (other for earlier in subjects[:run] for other in earlier.maps)
            if any(_same(shown, other) for other in before):  # runs on one target
                continue
            cells += shown.values.size
            if cells > CELLS:
                left_out += 1
            else:
                maps.append(charts.heat_map(subject, run, number, shown))
    band = (
        "A line is the median over seeds, its band goes from the lowest to the highest seed, wider "
        "by a standard error where the number is an estimate."
    )
    certificates = (
        "How far the surrogate Fisher of a run is from the reference: the paper's guarantee needs "
        "rho below 1."
    )
    causes = (
        "Each arrow is an edge with a probability over the threshold, and each pale band a pair "
        "that is joined with such a probability, in whatever direction: observations alone often "
        "do not say which. Point at an edge or a variable to read its probabilities."
    )
    sections: list[tuple[str, str, list[dict[str, Any]]]] = [
        ("Which causes which", causes, graphs + maps if graphs else []),
        ("Over training", band, _curves(subjects, "metrics")),
        ("Terminal law" if laws else "Marginals", "", laws + ([] if graphs else maps)),
        ("Certificates", certificates, _curves(subjects, "certificates")),
    ]
    return [section for section in sections if section[2]], left_out


def _same(one: HeatMap, other: HeatMap) -> bool:
    return one.title == other.title and np.array_equal(one.values, other.values, equal_nan=True)


def _curves(subjects: Sequence[Subject], kind: str) -> list[dict[str, Any]]:
    names = charts.in_order(subjects, kind)
    if not any(subject.metrics.get("rejected", np.zeros(1)).any() for subject in subjects):
        names = [name for name in names if name != "rejected"]  # a line at zero
    return [charts.curves(subjects, name, kind) for name in names]


def _last_values(subjects: Sequence[Subject]) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """The last values of each metric: its name, what it is, and a median and range for each run."""
    rows = []
    for name in charts.in_order(subjects, "metrics"):
        cells = []
        for subject in subjects:
            values = subject.metrics.get(name, np.zeros((0, 1)))
            values = values[~np.isnan(values).all(axis=1)]
            if not len(values):
                cells.append(("", ""))
                continue
            last = values[-1]
            many = f"{seen(last.min())} to {seen(last.max())}" if len(last) > 1 else ""
            cells.append((seen(float(np.median(last))), many))
        rows.append((name, charts.title_of(name), cells))
    return rows


def _side_by_side(tables: Sequence[Any]) -> list[tuple[str, list[str], bool]]:
    """Every name with its value in each table, and whether these differ; those that do first."""
    names = dict.fromkeys(name for table in tables for name in table)
    rows = [(name, [table.get(name, "") for table in tables]) for name in names]
    marked = [(name, values, len(set(values)) > 1) for name, values in rows]
    return sorted(marked, key=lambda row: not row[2])
