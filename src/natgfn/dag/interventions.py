"""Rows in which a variable was set from outside.

Its value there owes nothing to its parents: such a row leaves the local score of that variable, and
says of all others what it would have said anyway.
"""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Shaped

from ..errors import NatgfnError
from .names import unknown

Interventions = str | Path | Sequence[str] | pd.Series | Shaped[np.ndarray, "..."]
"""A file; the names of the targets of each row; or whether each variable was one, in each row."""


def mask_of(given: Interventions, names: tuple[str, ...], rows: int) -> Bool[np.ndarray, "rows d"]:
    """Whether each variable was a target, in each row.

    Args:
        given: a CSV file of one column with a name in its first line, and then a line for each row
            of the table; or such a column; or the answer itself. The targets of a row are separated
            by semicolons, and a row without one is empty.
        names: of the variables.
        rows: of the table.
    """
    if isinstance(given, np.ndarray) and (given.ndim != 1 or given.dtype == bool):
        if given.dtype != bool or given.shape != (rows, len(names)):
            raise ValueError(
                f"expected interventions as bool in {rows} rows and {len(names)} columns, got "
                f"{given.dtype} in the shape {given.shape}"
            )
        return given
    where = f"{given}" if isinstance(given, str | Path) else "interventions"
    targets = _read(given) if isinstance(given, str | Path) else list(given)
    if len(targets) != rows:
        raise NatgfnError(
            f"{where}: expected a line for each of {rows} rows of the table (empty if there was no "
            f"intervention), got {len(targets)}"
        )
    mask = np.zeros((rows, len(names)), bool)
    for row, text in enumerate(targets):
        for name in _targets(text, names):
            if name not in names:
                raise NatgfnError(f"{where}, row {row + 1}: {unknown(name, names)}")
            mask[row, names.index(name)] = True
    return mask


def _targets(text: Any, names: tuple[str, ...]) -> Iterable[str]:
    if pd.isna(text):
        return ()
    whole = str(text).strip()
    if whole in names:  # with a semicolon of its own, perhaps
        return (whole,)
    return filter(None, (part.strip() for part in whole.split(";")))


def _read(path: str | Path) -> list[str]:
    """The cells of a file of one column, without the first, which is its name."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            lines = list(csv.reader(file))
    except (csv.Error, UnicodeDecodeError) as error:
        raise NatgfnError(f"{path} is not a CSV file: {error}") from error
    except OSError as error:
        raise NatgfnError(f"cannot read {path}: {error.strerror}; expected a CSV file") from error
    for number, cells in enumerate(lines, start=1):
        if len(cells) > 1:
            raise NatgfnError(
                f"{path} has {len(cells)} cells in line {number}: expected one column, in which "
                "several targets of a row are separated by semicolons"
            )
    return ["".join(cells) for cells in lines[1:]]
