"""Exact metrics by messages, on assignments that nobody can list."""

import numpy as np

from ..algorithm import Algorithm, TrainState
from ..metrics import message_metrics
from .base import AbstractWatcher, Line, check_every


class Messages(AbstractWatcher):
    """Every metric of `metrics.message_metrics`, of a policy that sees contexts.

    Attributes:
        every: updates from one look to the next.
    """

    every: int | None = None

    def __check_init__(self):
        check_every(self.every)

    def __call__(self, algorithm: Algorithm, states: TrainState) -> Line:
        found = message_metrics(algorithm.env, states.flow)
        return {name: value.tolist() for name, value in found.items()}

    def note(self, line: Line) -> str:
        return f"KL {np.mean(line['kl']):.2e}  marginals {np.mean(line['marginal_error']):.1e}"
