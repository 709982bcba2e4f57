"""A mistake that no look at a single state can find: parents that cannot be reached.

A lazy walk on a line starts at 0 and takes a fixed number of steps. After `t` steps it is at
most `t` away from 0, but the backward mask also lists parents further out. Each of them is a
proper state of the right time from which the action does lead here, only the walk can never
be there. Walking backwards, P_B loses what goes to them, and training converges to a wrong law.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from natgfn.envs import AbstractEnv


class Walker(NamedTuple):
    place: Int[Array, ""]
    time: Int[Array, ""]


class UnnormalisedBackward(AbstractEnv):
    """A walk that goes left, stays, or goes right, and prefers to end far out."""

    reach: int = 2
    steps: int = 3

    @property
    def num_actions(self) -> int:
        return 3

    @property
    def max_steps(self) -> int:
        return self.steps

    def init(self) -> Walker:
        return Walker(jnp.array(0, jnp.int32), jnp.array(0, jnp.int32))

    def step(self, state: Walker, action) -> Walker:
        return Walker(state.place + action - 1, state.time + 1)

    def undo(self, state: Walker, action) -> Walker:
        return Walker(state.place - action + 1, state.time - 1)

    def forward_mask(self, state: Walker) -> Bool[Array, " actions"]:
        child = state.place + jnp.arange(3) - 1
        return (state.time < self.steps) & (abs(child) <= self.reach)

    def backward_mask(self, state: Walker) -> Bool[Array, " actions"]:
        parent = state.place - jnp.arange(3) + 1
        # The mistake: it should be `abs(parent) <= jnp.minimum(self.reach, state.time - 1)`.
        return (state.time > 0) & (abs(parent) <= self.reach)

    def is_terminal(self, state: Walker) -> Bool[Array, ""]:
        return state.time == self.steps

    def observe(self, state: Walker) -> Array:
        return jnp.stack([state.place, state.time]).astype(float)

    def log_reward(self, state: Walker) -> Array:
        return abs(state.place).astype(float)
