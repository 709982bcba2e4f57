"""The deceptive grid of Kim et al. (2025), the benchmark of `fig:deceptive_visited`."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .base import Action
from .grid import AbstractGrid, GridState


class DeceptiveGrid(AbstractGrid):
    r"""A grid with modes near its corners, and a cross of low reward that leads away from them.

    $$R(s) = R_0 + \tfrac1{10} \Bigl(1 - \prod_d 1\{|u_d| > \tfrac15\}\Bigr)
           + 2 \prod_d 1\{\tfrac35 < |u_d| < \tfrac45\},
      \qquad u_d = 2 s_d / (H - 1) - 1.$$

    The walls $s_d = H - 1$ end the construction: a move onto one is the last, with no stop
    after it. A wall cell therefore has one parent, and cells on two walls at once cannot be
    reached; they are no objects.

    Attributes:
        side: $H$, cells a side.
        dims: $D$, coordinates.
        floor: $R_0$, the reward of every cell.
        exact: whether cells on a threshold are judged in exact arithmetic. The published
            task judges them in float64: at $H = 256$ that makes 2601 modes of 2500.
    """

    side: int = 128
    dims: int = 2
    floor: float = 1e-5
    exact: bool = False

    @property
    def max_steps(self) -> int:
        return self.dims * (self.side - 2) + 1

    def step(self, state: GridState, action: Action) -> GridState:
        cell = state.cell + self.move(action)
        return GridState(cell, (action == self.dims) | jnp.any(self._on_wall(cell)))

    def _on_wall(self, cell: Int[Array, " dims"]) -> Bool[Array, " dims"]:
        return cell == self.side - 1

    def forward_mask(self, state: GridState) -> Bool[Array, " actions"]:
        return jnp.full(self.num_actions, ~state.stopped)

    def backward_mask(self, state: GridState) -> Bool[Array, " actions"]:
        """On a wall the move onto it: the other coordinates were reached before."""
        on_wall = self._on_wall(state.cell)
        moves = on_wall | (~state.stopped & (state.cell > 0))
        return jnp.append(moves, state.stopped & ~jnp.any(on_wall))

    def log_reward(self, state: GridState) -> Float[Array, ""]:
        cross, mode = self._indicators()
        # Not floor + 0.1 - 0.1: the difference would cost half the digits of float32.
        reward = (
            self.floor
            + 0.1 * jnp.any(jnp.asarray(cross)[state.cell])
            + 2.0 * jnp.all(jnp.asarray(mode)[state.cell])
        )
        return jnp.log(reward)

    def _indicators(self) -> tuple[np.ndarray, np.ndarray]:
        """$|u| <= 1/5$ and $3/5 < |u| < 4/5$ for each value of a coordinate.

        Always in NumPy: which cells are modes depends on the type and on the order of the
        operations. At $H = 256$ index 204 has $u = 3/5$, which float64 puts above 0.6.
        """
        m = self.side - 1
        if self.exact:
            scaled = 5 * abs(2 * np.arange(self.side) - m)  # 5 m |u|
            return scaled <= m, (3 * m < scaled) & (scaled < 4 * m)
        u = abs(np.arange(self.side, dtype=np.float64) / m * 2 - 1)
        return u <= 0.2, (u > 0.6) & (u < 0.8)

    def objects(self) -> GridState:
        cells = np.indices(self.sides, np.int32).reshape(self.dims, -1).T
        cells = cells[(cells == self.side - 1).sum(axis=1) <= 1]
        return GridState(jnp.asarray(cells), jnp.ones(len(cells), bool))
