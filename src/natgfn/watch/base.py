"""What a watcher is."""

from abc import abstractmethod
from typing import Any, ClassVar, TypeAlias

import equinox as eqx

from ..algorithm import Algorithm, TrainState
from ..errors import require_whole

Line: TypeAlias = dict[str, Any]
"""Of a record: `step`, `seconds`, and numbers by name, a list with one for each seed, or a
dictionary of such lists."""


class AbstractWatcher(eqx.Module):
    """Looks at a run between two of its compiled chunks, and changes nothing in it.

    Randomness comes from the keys of the states, by a constant of the watcher's own.
    """

    every: eqx.AbstractVar[int | None]
    """Updates from one look to the next; None for each line of the record."""

    keeps: ClassVar[bool] = False
    """Whether the whole state of the run is kept on disk at each look."""

    @property
    def draws(self) -> int:
        """How many trajectories a look draws together."""
        return 0

    @abstractmethod
    def __call__(self, algorithm: Algorithm, states: TrainState) -> Line:
        """Numbers by name, for the record."""

    def note(self, line: Line) -> str:
        """What the progress bar says of a line with those numbers; nothing by default."""
        return ""


def check_every(every: int | None) -> None:
    if every is not None:
        require_whole("every", every, 1)
