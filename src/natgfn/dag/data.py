"""Tables of observations: one row an observation, one column a variable, checked when read."""

from collections.abc import Iterable
from importlib.resources import as_file, files
from pathlib import Path

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int, Num

from ..errors import MissingExtra, NatgfnError

try:
    import pandas as pd
except ModuleNotFoundError as error:
    raise MissingExtra(error, "dag") from error

from .interventions import Interventions, mask_of

Edge = tuple[str, str]
"""From a cause to its effect, by name."""

CONSENSUS: tuple[Edge, ...] = (
    *(("PKC", to) for to in ("PKA", "Raf", "Mek", "P38", "Jnk")),
    *(("PKA", to) for to in ("Raf", "Mek", "Erk", "Akt", "P38", "Jnk")),
    ("Raf", "Mek"),
    ("Mek", "Erk"),
    ("Erk", "Akt"),
    ("Plcg", "PIP2"),
    ("Plcg", "PIP3"),
    ("PIP3", "PIP2"),
)
"""The 17 edges that the literature agrees on for the variables of `sachs`."""


LARGEST = 1e150
"""The largest size of a value that is not standardised."""


class Data(eqx.Module):
    """A checked table.

    Attributes:
        names: of the variables.
        values: numbers, or the numbers of levels, from 0, where the data are discrete.
        discrete: whether they are.
        scale: the unit of each column of the values, in the unit of the table (of its logarithms,
            if these were taken), where it was standardised.
        intervened: whether each variable was set from outside, in each row; nowhere if None.
    """

    names: tuple[str, ...]
    values: Num[np.ndarray, "rows d"]
    discrete: bool = False
    scale: Float[np.ndarray, " d"] | None = None
    intervened: Bool[np.ndarray, "rows d"] | None = None

    def __check_init__(self):
        rows, count = self.values.shape
        if len(self.names) != count:
            raise ValueError(f"expected {count} names, one for each column, got {len(self.names)}")
        if count < 2:
            raise NatgfnError(f"expected at least 2 columns, got {count}")
        repeated = sorted({name for name in self.names if self.names.count(name) > 1})
        if repeated:
            raise NatgfnError(f"columns must have different names, got {repeated[0]!r} twice")
        if rows < count:
            raise NatgfnError(
                f"expected at least as many rows as columns, got {rows} rows and {count} columns: "
                "bring more data or fewer variables"
            )
        for name, column in zip(self.names, self.values.T, strict=True):
            if np.all(column == column[0]):
                raise NatgfnError(
                    f"column {name!r} is constant and says nothing about other columns: remove it"
                )
        always = () if self.intervened is None else np.flatnonzero(np.all(self.intervened, axis=0))
        for child in always:
            raise NatgfnError(
                f"{self.names[child]!r} was intervened on in every row, so none tells of its "
                "causes: bring rows in which it was not"
            )

    def rows_of(self, child: int | None) -> Num[np.ndarray, "kept d"]:
        """The values of the rows in which a child was not set from outside; of all, without one."""
        if child is None or self.intervened is None:
            return self.values
        return self.values[~self.intervened[:, child]]


def read_csv(path: str | Path) -> pd.DataFrame:
    """The cells of a file as text: the first line has the names, and commas separate."""
    try:
        with Path(path).open(encoding="utf-8-sig") as file:  # a file, never an address
            cells = pd.read_csv(
                file, header=None, dtype=str, keep_default_na=False, skipinitialspace=True
            )
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise NatgfnError(f"{path} is not a CSV file: {reason}") from error
    except OSError as error:
        raise NatgfnError(f"cannot read {path}: {error.strerror}; expected a CSV file") from error
    names = [str(name).strip() for name in cells.iloc[0]]
    if len(names) < 2:
        raise NatgfnError(f"{path} has one column: expected at least 2, separated by commas")
    for number, name in enumerate(names, start=1):
        if not name:
            raise NatgfnError(
                f"column {number} of {path} has no name: name it, or remove it if it numbers rows"
            )
    if all(_is_number(name) for name in names):
        raise NatgfnError(
            f"the first line of {path} has numbers, starting with {names[0]}: expected names"
        )
    return cells.iloc[1:].reset_index(drop=True).set_axis(names, axis=1)


def load(
    table: pd.DataFrame | Num[np.ndarray, "rows d"] | str | Path,
    *,
    discrete: bool = False,
    log: bool = False,
    standardise: bool = True,
    interventions: Interventions | None = None,
) -> Data:
    """Check a table, and make of it what a score needs.

    Args:
        table: a data frame, a matrix (its columns are named X0, X1, ...) or a CSV file.
        discrete: whether values are levels without an order, text or numbers.
        log: whether to take natural logarithms first.
        standardise: whether to give each column mean 0 and variance 1 (with 1/N).
        interventions: the variables that were set from outside in each row: a CSV file of one
            column, such a column, or a matrix of bool (`interventions.mask_of`).
    """
    if isinstance(table, str | Path):
        table = read_csv(table)
    elif isinstance(table, np.ndarray):
        table = pd.DataFrame(table, columns=[f"X{i}" for i in range(table.shape[1])])
    names = tuple(str(name) for name in table.columns)
    columns = [table.iloc[:, place] for place in range(len(names))]
    for name, column in zip(names, columns, strict=True):
        _check_present(name, column)
    _check_one_kind(names, columns)
    intervened = None if interventions is None else mask_of(interventions, names, len(table))
    if discrete:
        if log:
            raise NatgfnError("logarithms are for continuous data: drop --log or --discrete")
        codes = [_levels(name, column) for name, column in zip(names, columns, strict=True)]
        return Data(names, np.stack(codes, axis=1), discrete=True, intervened=intervened)
    values = np.stack([_numbers(*pair) for pair in zip(names, columns, strict=True)], axis=1)
    if log:
        for name, column in zip(names, values.T, strict=True):
            if not np.all(column > 0):
                raise NatgfnError(
                    f"column {name!r} has a value {column.min():g}: logarithms need positive ones"
                )
        values = np.log(values)
    checked = Data(names, values, intervened=intervened)
    if not standardise:
        for name, column in zip(names, values.T, strict=True):
            if (largest := np.abs(column).max()) > LARGEST:
                raise NatgfnError(
                    f"column {name!r} has a value of size {largest:g}, whose square is not a "
                    "number: standardise, or change its unit"
                )
        return checked
    # By a power of two, which rounds nothing: squares are neither infinite nor zero.
    power = np.frexp(np.abs(values).max(axis=0))[1]
    values = np.ldexp(values, -power)
    deviation = values.std(axis=0)
    scale = np.ldexp(deviation, power)
    values = (values - values.mean(axis=0)) / deviation
    return Data(names, values, scale=scale, intervened=intervened)


def sachs() -> pd.DataFrame:
    """853 observations of 11 proteins in cells, raw values (README.md beside the file)."""
    with as_file(files("natgfn.dag") / "sachs.csv") as path:
        return read_csv(path).astype(float)


def adjacency(names: Iterable[str], edges: Iterable[Edge]) -> Int[np.ndarray, "d d"]:
    """The matrix of edges given by name: row is source, column is target."""
    place = {name: number for number, name in enumerate(names)}
    matrix = np.zeros((len(place), len(place)), np.int64)
    for source, target in edges:
        matrix[place[source], place[target]] = 1
    return matrix


def _is_number(text: str) -> bool:
    return bool(pd.notna(pd.to_numeric(text, errors="coerce")))


_MISSING = ("", "na", "n/a", "nan", "null", "none", "?")


def _check_present(name: str, column: pd.Series) -> None:
    text = column.astype(str).str.strip().str.lower()
    missing = (column.isna() | text.isin(_MISSING)).to_numpy()
    if missing.any():
        raise NatgfnError(
            f"column {name!r} has {missing.sum()} missing values, the first in row "
            f"{missing.argmax() + 1}: fill them in or remove their rows"
        )


def _check_one_kind(names: tuple[str, ...], columns: list[pd.Series]) -> None:
    """Refuse text beside numbers that are no levels: no score here is for both."""
    text, numbers = [], []
    for name, column in zip(names, columns, strict=True):
        wordy = np.isnan(np.asarray(pd.to_numeric(column, errors="coerce"), float))
        if len(wordy) and wordy.all():
            text.append(name)
        elif not wordy.any() and column.nunique() > _most_levels(len(column)):
            numbers.append(name)
    if text and numbers:
        raise NatgfnError(
            f"column {text[0]!r} is text and column {numbers[0]!r} has numbers that are no levels: "
            "a table is either continuous or discrete; group the numbers into levels and use "
            "--discrete, or leave out one kind"
        )


def _most_levels(rows: int) -> int:
    """The most levels that a discrete column has."""
    return max(2, rows // 2)


def _numbers(name: str, column: pd.Series) -> Float[np.ndarray, " rows"]:
    numbers = np.asarray(pd.to_numeric(column, errors="coerce"), float)
    wrong = ~np.isfinite(numbers)
    if wrong.any():
        raise NatgfnError(
            f"column {name!r} has {str(column.iloc[wrong.argmax()])!r} in row "
            f"{wrong.argmax() + 1}: expected a number (text needs --discrete)"
        )
    return numbers


def _levels(name: str, column: pd.Series) -> Int[np.ndarray, " rows"]:
    levels, codes = np.unique(column.astype(str).to_numpy(str), return_inverse=True)
    if len(levels) > _most_levels(len(codes)):
        raise NatgfnError(
            f"column {name!r} has {len(levels)} levels in {len(codes)} rows: it is not discrete; "
            "group its values or drop --discrete"
        )
    return codes
