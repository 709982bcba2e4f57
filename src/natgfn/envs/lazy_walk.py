"""The lazy random walk of Dall'Antonia et al. (2026), the benchmark of `tab:8g_ext`."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..errors import require_whole
from .base import AbstractEnv, Action
from .targets import AbstractTarget, Gaussians


class WalkState(NamedTuple):
    cell: Int[Array, " dims"]
    """Each coordinate from 0 to $2m$; the walk starts in the middle."""
    time: Int[Array, ""]


class LazyWalk(AbstractEnv):
    r"""$T$ steps on the cells $\{-m, \dots, m\}^D$, from the origin: forward, back, or stay.

    Action $2d$ increments coordinate $d$, $2d + 1$ decrements it, and the last one stays. Moves
    out of the grid are not allowed; there is no stop: a walk is complete at time $T$, and only
    where it is then counts. A cell can be reached in $t$ steps if it is at most $t$ moves away,
    and `backward_mask` allows only such parents: with others, $P_B$ would sum to less than one
    over the walks into a cell, and the optimum would not be the target.

    Attributes:
        reach: $m$, the largest coordinate.
        steps: $T$.
        dims: $D$.
        target: the reward of the last cell.
    """

    reach: int = 8
    steps: int = 20
    dims: int = 2
    target: AbstractTarget = Gaussians()

    def __check_init__(self):
        for name in ("reach", "steps", "dims"):
            require_whole(name, getattr(self, name), 1)

    @property
    def num_actions(self) -> int:
        return 2 * self.dims + 1

    @property
    def max_steps(self) -> int:
        return self.steps

    @property
    def sides(self) -> tuple[int, ...]:
        """Time is a coordinate too: they tell all states apart."""
        return (2 * self.reach + 1,) * self.dims + (self.steps + 1,)

    def coordinates(self, state: WalkState) -> Int[Array, " coordinates"]:
        return jnp.append(state.cell, state.time)

    def init(self) -> WalkState:
        return WalkState(jnp.full(self.dims, self.reach, jnp.int32), jnp.array(0, jnp.int32))

    def step(self, state: WalkState, action: Action) -> WalkState:
        return WalkState(state.cell + jnp.asarray(self._moves())[action], state.time + 1)

    def undo(self, state: WalkState, action: Action) -> WalkState:
        return WalkState(state.cell - jnp.asarray(self._moves())[action], state.time - 1)

    def _moves(self) -> Int[np.ndarray, "actions dims"]:
        moves = np.zeros((self.num_actions, self.dims), np.int32)
        for d in range(self.dims):
            moves[2 * d, d], moves[2 * d + 1, d] = 1, -1
        return moves

    def _inside(self, cells: Int[Array, "actions dims"]) -> Bool[Array, " actions"]:
        return jnp.all((cells >= 0) & (cells <= 2 * self.reach), axis=1)

    def forward_mask(self, state: WalkState) -> Bool[Array, " actions"]:
        return self._inside(state.cell + self._moves()) & (state.time < self.steps)

    def backward_mask(self, state: WalkState) -> Bool[Array, " actions"]:
        parents = state.cell - self._moves()
        away = jnp.sum(jnp.abs(parents - self.reach), axis=1)
        return self._inside(parents) & (away < state.time)

    def is_terminal(self, state: WalkState) -> Bool[Array, ""]:
        return state.time == self.steps

    def observe(self, state: WalkState) -> Float[Array, " features"]:
        """One-hot coordinates and time."""
        cells = state.cell[:, None] == jnp.arange(2 * self.reach + 1)
        return jnp.append(cells.ravel(), state.time == jnp.arange(self.steps + 1)).astype(float)

    def log_reward(self, state: WalkState) -> Float[Array, ""]:
        return jnp.asarray(np.log(self._rewards()))[tuple(state.cell)]

    def is_mode(self, state: WalkState) -> Bool[Array, ""]:
        rewards = self._rewards()
        return jnp.asarray(self.target.modes(rewards.ravel()).reshape(rewards.shape))[
            tuple(state.cell)
        ]

    def _rewards(self) -> Float[np.ndarray, "..."]:
        """Of every cell."""
        shape = self.sides[:-1]
        points = np.indices(shape).reshape(self.dims, -1).T - float(self.reach)
        return self.target.rewards(points).reshape(shape)

    def objects(self) -> WalkState:
        cells = np.indices(self.sides[:-1], np.int32).reshape(self.dims, -1).T
        near = cells[abs(cells - self.reach).sum(axis=1) <= self.steps]
        return WalkState(jnp.asarray(near), jnp.full(len(near), self.steps, jnp.int32))
