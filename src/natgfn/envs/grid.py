"""What grids that grow from a corner have in common."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..errors import require_whole
from .base import AbstractEnv, Action


class GridState(NamedTuple):
    cell: Int[Array, " dims"]
    stopped: Bool[Array, ""]


class AbstractGrid(AbstractEnv):
    """Start in the corner; increment a coordinate, or stop: the last action."""

    side: eqx.AbstractVar[int]
    """Cells a side."""
    dims: eqx.AbstractVar[int]
    """Coordinates."""
    floor: eqx.AbstractVar[float]
    """The least reward."""

    def __check_init__(self):
        require_whole("side", self.side, 2)
        require_whole("dims", self.dims, 1)
        if not 0 < self.floor < float("inf"):
            raise ValueError(f"floor must be positive and finite, got {self.floor}")

    @property
    def num_actions(self) -> int:
        return self.dims + 1

    @property
    def sides(self) -> tuple[int, ...]:
        return (self.side,) * self.dims

    def coordinates(self, state: GridState) -> Int[Array, " dims"]:
        return state.cell

    def init(self) -> GridState:
        return GridState(jnp.zeros(self.dims, jnp.int32), jnp.array(False))

    def undo(self, state: GridState, action: Action) -> GridState:
        return GridState(state.cell - self.move(action), jnp.array(False))

    def move(self, action: Action) -> Int[Array, " dims"]:
        """How an action changes the cell; stopping does not."""
        return (jnp.arange(self.dims) == action).astype(jnp.int32)

    def log_partial(self, state: GridState) -> Float[Array, ""]:
        """The reward for stopping here."""
        return self.log_reward(state)

    def is_terminal(self, state: GridState) -> Bool[Array, ""]:
        return state.stopped

    def observe(self, state: GridState) -> Float[Array, " features"]:
        """One-hot coordinates."""
        return (state.cell[:, None] == jnp.arange(self.side)).astype(float).ravel()
