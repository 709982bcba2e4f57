"""Exact metrics, on an enumerated environment."""

import numpy as np

from ..algorithm import Algorithm, TrainState, discovered
from ..metrics import evaluate
from ..statespace import require_space
from .base import AbstractWatcher, Line, check_every


class Exact(AbstractWatcher):
    """Every metric of `metrics.evaluate`, from the terminal law, and the modes `discovered`.

    Attributes:
        every: updates from one look to the next.
    """

    every: int | None = None

    def __check_init__(self):
        check_every(self.every)

    def __call__(self, algorithm: Algorithm, states: TrainState) -> Line:
        space = require_space(algorithm.env, "watch.Exact", "watch.Sampled")
        metrics, _ = evaluate(space, states.flow)
        drawn = discovered(space, states)
        assert drawn is not None
        return {"discovered": drawn.tolist()} | {k: v.tolist() for k, v in metrics.items()}

    def note(self, line: Line) -> str:
        return f"KL {np.mean(line['kl']):.2e}  TV {np.mean(line['tv']):.2e}"
