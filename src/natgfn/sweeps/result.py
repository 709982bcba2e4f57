"""What a sweep found: a table, the best setting with its uncertainty, a page that compares."""

import csv
import dataclasses
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ..errors import NatgfnError
from ..report import Subject, Table, seen, write_page
from ..training import RECORD, Record, cell, plain, subject_from, write_whole
from .study import Study

LOW = ("kl", "tv", "reverse_kl", "path_kl", "jsd", "l1", "gap", "marginal_error", "loss")
HIGH = ("elbo", "effective_share", "spearman", "pearson", "modes", "discovered", "top_log_reward")
USUAL = ("kl", "marginal_error", "elbo", "train_loss")
"""The metrics that are better if lower, and if higher; and by which a sweep is judged by default,
the first that its trials have."""

SHOWN = 12
"""The most settings that a page compares: the best ones."""

RESAMPLES = 2_000


def direction(metric: str) -> int:
    """1 if lower is better, -1 if higher is."""
    if metric in (*LOW, "train_loss"):
        return 1
    if metric in HIGH:
        return -1
    raise NatgfnError(
        f"metric: no one knows whether a low {metric!r} is good: expected one of "
        f"{', '.join((*LOW, 'train_loss', *HIGH))}"
    )


@dataclasses.dataclass(frozen=True)
class Sweep:
    """All trials of a sweep after it has ended.

    Attributes:
        study: what they were.
        lines: the last line of each trial's record, or its `error`.
        folder: of the sweep.
        metric: by which settings are compared.
    """

    study: Study
    lines: Sequence[dict[str, Any]]
    folder: Path
    metric: str

    @property
    def failed(self) -> list[tuple[str, str]]:
        """The name of each trial that failed, and why."""
        return [
            (trial.name, line["error"])
            for trial, line in zip(self.study.trials, self.lines, strict=True)
            if "error" in line
        ]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each trial: its folder, settings, seed, metrics, and what went wrong."""
        rows = []
        for trial, line in zip(self.study.trials, self.lines, strict=True):
            numbers = {name: x[0] for name, x in line.items() if isinstance(x, list)}
            row: dict[str, Any] = {"trial": trial.name, **trial.values, "seed": trial.setup.seed}
            row |= {"updates": line.get("step"), "seconds": line.get("seconds")}
            rows.append(row | numbers | {"error": line.get("error", "")})
        return rows

    @property
    def settings(self) -> list[dict[str, Any]]:
        """A row for each setting, the best first: the metric's mean over seeds, its standard error,
        and how often it is the best of all if seeds are drawn again (the bootstrap).

        A setting of which a trial failed comes last. The standard error of one seed is NaN.
        """
        sign, values = direction(self.metric), self._values()
        best = _shares_of_best(sign, values)
        rows = []
        for number, found in values.items():
            trial = next(t for t in self.study.trials if t.setting == number)
            error = found.std(ddof=1) / len(found) ** 0.5 if len(found) > 1 else np.nan
            rows.append(
                {
                    "setting": number,
                    **trial.values,
                    "seeds": len(found),
                    self.metric: float(found.mean()),
                    "standard_error": float(error),
                    "best_share": best[number],
                }
            )
        return sorted(rows, key=lambda row: _place(sign * row[self.metric]))

    @property
    def best(self) -> dict[str, Any] | None:
        """The first of `settings`, if it has a value at all."""
        first = self.settings[0]
        return None if np.isnan(first[self.metric]) else first

    def label(self, row: dict[str, Any]) -> str:
        """What is varied in a row of `settings`, as a person reads it."""
        return next(t.label for t in self.study.trials if t.setting == row["setting"])

    def write(self) -> None:
        """Tables of trials and of settings, as CSV and JSON, into the folder."""
        for name, rows in (("trials", self.rows), ("settings", self.settings)):
            _write(self.folder / f"{name}.csv", _csv(rows))
            _write(self.folder / f"{name}.json", json.dumps(plain(rows), indent=1) + "\n")

    def report(self, path: str | Path) -> Path:
        """Write a page that compares the settings, their seeds as bands."""
        return write_page(list(self._subjects()), path)

    def _values(self) -> dict[int, Float[np.ndarray, " seeds"]]:
        """The metric of each setting, NaN of trials that have none."""
        values: dict[int, list[float]] = {}
        for trial, line in zip(self.study.trials, self.lines, strict=True):
            values.setdefault(trial.setting, []).append(line.get(self.metric, [np.nan])[0])
        return {number: np.array(found, float) for number, found in values.items()}

    def _subjects(self) -> Iterator[Subject]:
        rows = [row for row in self.settings if not np.isnan(row[self.metric])]
        everything = Table("All settings", *_as_table(self.settings))
        for place, row in enumerate(rows[:SHOWN]):
            trials = [t for t in self.study.trials if t.setting == row["setting"]]
            records = [Record(self.folder / trial.name / RECORD).read() for trial in trials]
            lines = _side_by_side([lines for _, lines in records])
            subject = subject_from(records[0][0], lines, self.label(row))
            if place == 0:
                hidden = f"; the {SHOWN} best are drawn" if len(rows) > SHOWN else ""
                remark = f"Settings are ordered by {self.metric}, the best first{hidden}."
                changes = {"tables": (everything,), "remarks": (remark, *subject.remarks)}
                subject = dataclasses.replace(subject, **changes)
            yield subject


def _place(value: float) -> float:
    return np.inf if np.isnan(value) else value


def _shares_of_best(sign: int, values: dict[int, Float[np.ndarray, " seeds"]]) -> dict[int, float]:
    """How often each setting has the best mean among seeds that are drawn again with return."""
    rng = np.random.default_rng(0)
    resamples = [rng.choice(found, (RESAMPLES, len(found))) for found in values.values()]
    means = np.stack([sign * drawn.mean(axis=1) for drawn in resamples])
    means[[bool(np.isnan(found).any()) for found in values.values()]] = np.inf
    wins = np.bincount(np.argmin(means, axis=0), minlength=len(values)) / RESAMPLES
    return dict(zip(values, wins.tolist(), strict=True))


def _side_by_side(records: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The lines of one-seed records as those of one record with many seeds."""
    lines = []
    for together in zip(*records, strict=False):
        if len({line["step"] for line in together}) > 1:
            break
        names = [k for k, v in together[0].items() if isinstance(v, list)]
        shared = [name for name in names if all(name in line for line in together)]
        line = {"step": together[0]["step"], "seconds": max(x["seconds"] for x in together)}
        lines.append(line | {name: [x[name][0] for x in together] for name in shared})
    return lines


def _as_table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return names, [[_cell(row.get(name)) for name in names] for row in rows]


def _cell(value: Any) -> str:
    return seen(value) if isinstance(value, float) else "" if value is None else str(value)


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writerow({name: cell(name) for name in names})
    for row in rows:
        writer.writerow({name: cell(x) if isinstance(x, str) else x for name, x in row.items()})
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, lambda file: file.write(text.encode()))
    except OSError as error:
        raise NatgfnError(f"cannot write {path}: {error.strerror}") from error
