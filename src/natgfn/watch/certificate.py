"""Whether the Fisher of a run can be trusted, while it trains."""

from typing import ClassVar

import numpy as np

from ..algorithm import Algorithm, TrainState
from ..certify import certify_states
from .base import AbstractWatcher, Line, check_every

CERTIFICATE = "certificate"
"""Where a line of the record has its certificate, if it has one."""


class Certificate(AbstractWatcher):
    """A certificate (`certify.certificate`) in the time of some twenty updates, and a snapshot.

    Attributes:
        every: updates from one to the next.
    """

    keeps: ClassVar[bool] = True

    every: int | None = None

    def __check_init__(self):
        check_every(self.every)

    def __call__(self, algorithm: Algorithm, states: TrainState) -> Line:
        found = certify_states(algorithm, states)
        return {CERTIFICATE: {name: value.tolist() for name, value in found.items()}}

    def note(self, line: Line) -> str:
        found = line[CERTIFICATE]
        # Of a network it is often only a lower bound.
        sign = "" if np.isfinite(found["rho_error"]).all() else ">= "
        return f"rho {sign}{np.mean(found['rho']):.2g}"
