"""What is measured: tasks and their policies, as every library is given them."""

from collections.abc import Callable
from typing import NamedTuple

WIDTH, DEPTH = 256, 2
"""Of the network: hidden units a layer, hidden layers."""
RATE = 1e-9
"""Of Adam, next to nothing: the policy stays where its trajectories have the wanted length."""
ROWS = 100
"""Observations from which graphs are scored."""


class Task(NamedTuple):
    """A grid of `side` cells in each of `dims` coordinates, or graphs on `dims` vertices."""

    kind: str
    dims: int
    side: int
    batch: int
    """Trajectories an update."""

    @property
    def name(self) -> str:
        what = f"{self.dims}D h{self.side}" if self.kind == "grid" else f"DAG d={self.dims}"
        return f"{what}, batch {self.batch}"

    @property
    def lengths(self) -> dict[str, float]:
        """The mean length of a trajectory, in steps, of each regime.

        Fresh is that of the uniform policy, up to what the boundary does; long that of the target,
        whose mean is the centre of the grid.
        """
        if self.kind == "dag":
            return {"fresh": 7.0}
        return {"fresh": self.dims + 1.0, "long": self.dims * (self.side - 1) / 2 + 1}


GRIDS = ((2, 8), (2, 64), (4, 16))
TASKS = (
    *(Task("grid", dims, side, batch) for dims, side in GRIDS for batch in (16, 128)),
    Task("dag", 5, 0, 128),
)


def offset_for(length: Callable[[float], float], wanted: float) -> float:
    """What to add to the logit of stopping for trajectories of a mean length, by bisection.

    `length` is the mean length at an offset; it falls as stopping becomes likelier.
    """
    low, high = -12.0, 3.0
    for _ in range(10):
        middle = (low + high) / 2
        low, high = (middle, high) if length(middle) > wanted else (low, middle)
    return (low + high) / 2


def observations(variables: int):
    """A table of shape `ROWS, variables`, of a linear Gaussian chain."""
    import numpy as np

    noise = np.random.default_rng(0).normal(size=(ROWS, variables))
    for child in range(1, variables):
        noise[:, child] += noise[:, child - 1]
    return noise
