"""Sets of variables as the bits of an integer, and sums over their subsets.

A table over all sets of d variables has $2^d$ columns; bit i of a column's number says whether
variable i belongs to the set.
"""

import numpy as np
from jaxtyping import Float, Int, Num

from ..errors import NatgfnError
from ..memory import gigabytes

MEMORY_LIMIT = 8 * 2**30
"""Bytes. Larger tables are refused before they are allocated."""


def elements(members: int) -> Int[np.ndarray, " size"]:
    """The variables of a set."""
    return np.array([i for i in range(members.bit_length()) if members >> i & 1], np.int64)


def subsets(members: int) -> Int[np.ndarray, " sets"]:
    """All subsets of a set, ascending; the subsets of its k lowest variables are the first 2^k."""
    return subset_totals(1 << elements(members))


def subset_totals(values: Num[np.ndarray, " size"]) -> Num[np.ndarray, " sets"]:
    """The sum of the values of each subset, in the order of `subsets`."""
    totals = np.zeros(1 << len(values), values.dtype)
    for place, value in enumerate(values):
        half = 1 << place
        np.add(totals[:half], value, out=totals[half : 2 * half])
    return totals


def indicators(sets: Int[np.ndarray, "*shape"], count: int) -> Int[np.ndarray, "*shape d"]:
    """Whether each of `count` variables belongs to each set: 0 or 1."""
    return sets[..., None] >> np.arange(count) & 1


def log_sums_over_subsets(table: Float[np.ndarray, "*rows sets"]) -> None:
    r"""In place, $\log \sum_{T \subseteq S} e^{x_T}$ for every set $S$."""
    for pairs in _pairs(table):
        np.logaddexp(pairs[..., 0, :], pairs[..., 1, :], out=pairs[..., 1, :])


def log_sums_over_supersets(table: Float[np.ndarray, "*rows sets"]) -> None:
    r"""In place, $\log \sum_{T \supseteq S} e^{x_T}$ for every set $S$."""
    for pairs in _pairs(table):
        np.logaddexp(pairs[..., 0, :], pairs[..., 1, :], out=pairs[..., 0, :])


def maxima_over_subsets(table: Float[np.ndarray, "*rows sets"]) -> None:
    r"""In place, $\max_{T \subseteq S} x_T$ for every set $S$."""
    for pairs in _pairs(table):
        np.maximum(pairs[..., 0, :], pairs[..., 1, :], out=pairs[..., 1, :])


def _pairs(table: np.ndarray) -> list[np.ndarray]:
    """For each variable, a view in which the last axis but one says whether a set has it."""
    *rows, sets = table.shape
    strides = [2**i for i in range(sets.bit_length() - 1)]
    return [table.reshape(*rows, -1, 2, stride) for stride in strides]


def table_bytes(count: int) -> int:
    """The memory of a table of all children and sets."""
    return 8 * count * 2**count


def check_memory(what: str, needed: int) -> None:
    """Refuse what does not fit, before it is allocated."""
    if needed > MEMORY_LIMIT:
        raise NatgfnError(
            f"{what} would take {gigabytes(needed)}, more than the limit of "
            f"{gigabytes(MEMORY_LIMIT)}: use fewer variables"
        )
