"""What a page can say of one run, as plain data: nothing here is escaped yet."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Num

Metrics = Mapping[str, Float[np.ndarray, "lines seeds"]]
"""Numbers by name, a row for each line of a record, NaN where a line has none."""


class Law(NamedTuple):
    """The probabilities of objects, in the order of an environment; that of a run is the mean."""

    target: Float[np.ndarray, " objects"]
    learned: Float[np.ndarray, " objects"]


class HeatMap(NamedTuple):
    """A matrix to be drawn as colours; NaN is drawn as nothing.

    Attributes:
        title: what its numbers are.
        values: first axis upwards, or downwards where the rows have names.
        axes: the names of the first and of the second axis.
        names: of rows and columns, if they have any.
        logarithmic: whether colours are in proportion to the logarithm.
    """

    title: str
    values: Float[np.ndarray, "rows columns"]
    axes: tuple[str, str]
    names: tuple[Sequence[str], Sequence[str]] | None = None
    logarithmic: bool = False


class Graph(NamedTuple):
    """The probability of each edge between variables, row is source; the diagonal is NaN."""

    names: Sequence[str]
    probabilities: Float[np.ndarray, "d d"]


class Verdict(NamedTuple):
    """Whether to use what a run found, and the reasons."""

    word: str
    why: Sequence[str]

    @property
    def against(self) -> bool:
        return self.word.startswith("do not")


class Table(NamedTuple):
    """Rows of text under a header."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Subject:
    """One run.

    Attributes:
        name: what the legend calls it.
        command: what makes it again; empty if no command does.
        settings: by dotted name, as `flat` gives them.
        versions: of everything that a number may depend on.
        steps: updates made before each line of the record.
        seconds: of training before each line.
        metrics: over training.
        certificates: over training, on the same lines.
        law: of its objects, where they can be listed.
        verdict: on what it found, if there is one.
        headline: the few numbers that come first, by what they are.
        graph: what it found of causes, if that was the question.
        maps: laws and marginals that a picture can show.
        tables: samples, and other numbers.
        remarks: sentences that a reader should not miss.
    """

    name: str
    command: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    steps: Int[np.ndarray, " lines"] = field(default_factory=lambda: np.zeros(0, int))
    seconds: Num[np.ndarray, " lines"] = field(default_factory=lambda: np.zeros(0))
    metrics: Metrics = field(default_factory=dict)
    certificates: Metrics = field(default_factory=dict)
    law: Law | None = None
    verdict: Verdict | None = None
    headline: Mapping[str, str] = field(default_factory=dict)
    graph: Graph | None = None
    maps: tuple[HeatMap, ...] = ()
    tables: tuple[Table, ...] = ()
    remarks: tuple[str, ...] = ()


def flat(table: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as lines: a dotted name, and the value as text."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{at}{name}.")
        elif isinstance(value, list) and any(isinstance(part, Mapping) for part in value):
            numbered = {str(place): part for place, part in enumerate(value)}
            yield from flat(numbered, f"{at}{name}.")
        else:
            yield f"{at}{name}", _text(value)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def seen(number: float) -> str:
    """A number as a person reads it: four digits."""
    return f"{number:,.0f}" if float(number).is_integer() and abs(number) < 1e9 else f"{number:.4g}"
