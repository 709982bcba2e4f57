"""The paper's tables as it prints them (`data/printed.toml`), and ours beside them."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .tables import table


class Printed(NamedTuple):
    """A table of the paper."""

    columns: tuple[str, ...]
    rows: Mapping[str, Mapping[str, str]]
    """By method, then by column: `mean`, or `mean ± deviation`."""
    differences: Mapping[str, str]
    """Of the loss AUC, Damped Fisher minus another method; only in the studies of graphs."""


class Measured(NamedTuple):
    """A row of ours for a table of the paper."""

    method: str
    how: str
    """What sets it apart from other rows of the method, and how many seeds it has."""
    cells: Mapping[str, tuple[float, str]]
    """By column: the mean, and the text to show."""


def _read() -> dict[str, Printed]:
    found = tomllib.loads((Path(__file__).parent / "data" / "printed.toml").read_text())
    return {
        label: Printed(
            tuple(part["columns"]),
            {
                name: dict(zip(part["columns"], cells, strict=True))
                for name, cells in part["rows"].items()
            },
            part.get("differences", {}),
        )
        for label, part in found.items()
    }


PRINTED = _read()
"""By the label of the table."""


def seed_count(count: int) -> str:
    return f"{count} seed{'s' * (count > 1)}"


def beside(printed: Printed, ours: Sequence[Measured]) -> str:
    """Each row of the paper, with ours below it, and what is far from it; then ours alone."""
    body = []
    for method in dict.fromkeys([*printed.rows, *(row.method for row in ours)]):
        theirs = printed.rows.get(method, {})
        if theirs:
            body.append([f"*{method}*", "*paper*", *theirs.values(), ""])
        for row in ours:
            if row.method == method:
                cells = [row.cells[column][1] for column in printed.columns]
                body.append([method, row.how, *cells, _far(theirs, row)])
        if not any(row.method == method for row in ours):
            body.append([method, "**not run**", *[""] * (len(printed.columns) + 1)])
    return table(["method", "", *printed.columns, "beyond twice the paper's ±"], body)


def _far(theirs: Mapping[str, str], row: Measured) -> str:
    """Columns in which ours is more than two of the paper's deviations away, with the distance."""
    spread = {column: text.split(" ± ") for column, text in theirs.items() if "±" in text}
    distance = {
        # A deviation that is printed as zero is less than half of its last digit.
        column: (row.cells[column][0] - float(mean)) / (float(deviation) or 0.05)
        for column, (mean, deviation) in spread.items()
    }
    far = [f"{column} {units:+.1f}" for column, units in distance.items() if abs(units) > 2]
    return ", ".join(far) or ("none" if spread else "")
