"""The hypergrid of Malkin et al. (2022), the benchmark of `fig:hypergrid`."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .base import Action
from .grid import AbstractGrid, GridState


class Hypergrid(AbstractGrid):
    r"""A grid with $H$ cells a side: increment a coordinate, or stop and collect the reward.

    $$R(s) = R_0 + R_1 \prod_d 1\{\tfrac14 < |x_d - \tfrac12| < \tfrac12\}
           + R_2 \prod_d 1\{\tfrac3{10} < |x_d - \tfrac12| < \tfrac25\},
      \qquad x_d = s_d / (H - 1).$$

    The field's hard form has $R_0, R_1, R_2 = 10^{-4}, 1, 3$.

    Attributes:
        side: $H$, cells a side.
        dims: $D$, coordinates.
        floor: $R_0$, the reward of every cell.
        outer_bound: whether the plateau excludes $|x_d - 1/2| = 1/2$, as the paper prints
            it. Most code of the field leaves that bound out.
        plateau: $R_1$.
        peak: $R_2$.
    """

    side: int = 8
    dims: int = 2
    floor: float = 1e-3
    outer_bound: bool = True
    plateau: float = 0.5
    peak: float = 2.0

    def __check_init__(self):
        for name in ("plateau", "peak"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(
                    f"{name} must be finite and not negative, got {getattr(self, name)}"
                )

    @property
    def max_steps(self) -> int:
        return self.dims * (self.side - 1) + 1

    def step(self, state: GridState, action: Action) -> GridState:
        return GridState(state.cell + self.move(action), jnp.asarray(action == self.dims))

    def forward_mask(self, state: GridState) -> Bool[Array, " actions"]:
        return ~state.stopped & jnp.append(state.cell < self.side - 1, True)

    def backward_mask(self, state: GridState) -> Bool[Array, " actions"]:
        return jnp.append(~state.stopped & (state.cell > 0), state.stopped)

    def log_reward(self, state: GridState) -> Float[Array, ""]:
        plateau, peak = self._indicators()
        reward = (
            self.floor
            + self.plateau * jnp.all(jnp.asarray(plateau)[state.cell])
            + self.peak * jnp.all(jnp.asarray(peak)[state.cell])
        )
        return jnp.log(reward)

    def _indicators(self) -> tuple[np.ndarray, np.ndarray]:
        """Both indicators for each value of a coordinate, in integers: floats move the peaks.

        With $m = H-1$, the distance $|x - 1/2|$ is `twice` $/ 2m$. At $H = 16$ the float64
        evaluation puts index 12 on the wrong side of $3/10$ and makes nine peaks of four.
        """
        m = self.side - 1
        twice = abs(2 * np.arange(self.side) - m)
        plateau = (2 * twice > m) & ((twice < m) | (not self.outer_bound))
        peak = (3 * m < 5 * twice) & (5 * twice < 4 * m)
        return plateau, peak

    @property
    def log_z(self) -> float:
        """Every cell has the floor, and a product of indicators counts to a power."""
        counts = np.array([self.side, *map(np.sum, self._indicators())])
        with np.errstate(divide="ignore"):  # of what no cell has
            heights = np.log([self.floor, self.plateau, self.peak])
            return float(np.logaddexp.reduce(heights + self.dims * np.log(counts)))

    def objects(self) -> GridState:
        cells = np.indices(self.sides, np.int32).reshape(self.dims, -1).T
        return GridState(jnp.asarray(cells), jnp.ones(len(cells), bool))
