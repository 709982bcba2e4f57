"""QM9-small: chains of five of eleven molecular blocks, with rewards from a file."""

from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import Float

from ..errors import NatgfnError
from .sequences import AbstractExtended, AbstractTable

_BLOCKS, _LENGTH = 11, 5


class QM9Small(AbstractExtended, AbstractTable):
    r"""$R(x) = 100 \max(y(x), 10^{-3})^\beta / \max y^\beta$, extended at either end.

    The table is not part of natgfn.

    Attributes:
        table: an `.npz` file whose array `reward` has $y$ of all 161,051 chains, in lexicographic
            order.
        exponent: $\beta$.
    """

    table: str
    exponent: float = 5.0

    def __check_init__(self):
        if not 0 < self.exponent < float("inf"):
            raise ValueError(f"exponent must be positive and finite, got {self.exponent}")

    @property
    def num_letters(self) -> int:
        return _BLOCKS

    @property
    def rewards(self) -> Float[np.ndarray, " sequences"]:
        scores = np.maximum(_scores(self.table), 1e-3) ** self.exponent
        return 100 * scores / scores.max()


@cache
def _scores(table: str) -> Float[np.ndarray, " sequences"]:
    try:
        with np.load(Path(table), allow_pickle=False) as file:
            scores = np.asarray(file["reward"], np.float64)
    except (OSError, ValueError, KeyError) as error:
        wanted = "an .npz file with an array `reward`"
        raise NatgfnError(f"cannot read {table}: expected {wanted}: {error}") from error
    if scores.shape != (_BLOCKS**_LENGTH,) or not np.all(np.isfinite(scores)):
        shape = f"{_BLOCKS**_LENGTH:,} finite numbers"
        raise NatgfnError(f"{table}: expected {shape} in `reward`, got {scores.shape}")
    return scores
