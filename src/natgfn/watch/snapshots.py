"""The whole state of a run, every now and then."""

from typing import ClassVar

from ..algorithm import Algorithm, TrainState
from .base import AbstractWatcher, Line, check_every


class Snapshots(AbstractWatcher):
    """The whole state of the run, kept on disk.

    Attributes:
        every: updates from one to the next.
    """

    keeps: ClassVar[bool] = True

    every: int | None = None

    def __check_init__(self):
        check_every(self.every)

    def __call__(self, algorithm: Algorithm, states: TrainState) -> Line:
        return {}
