"""An environment with a mistake that `natgfn check` finds: `undo` forgets half of its work."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from natgfn.envs import AbstractEnv


class Word(NamedTuple):
    letters: Int[Array, " length"]
    written: Int[Array, ""]


class BrokenUndo(AbstractEnv):
    """Words of a fixed length over two letters, written from left to right."""

    length: int = 3

    @property
    def num_actions(self) -> int:
        return 2

    @property
    def max_steps(self) -> int:
        return self.length

    def init(self) -> Word:
        return Word(jnp.zeros(self.length, jnp.int32), jnp.array(0, jnp.int32))

    def step(self, state: Word, action) -> Word:
        return Word(state.letters.at[state.written].set(action), state.written + 1)

    def undo(self, state: Word, action) -> Word:
        # The mistake: the letter stays. It should be `state.letters.at[written].set(0)`.
        return Word(state.letters, state.written - 1)

    def forward_mask(self, state: Word) -> Bool[Array, " actions"]:
        return jnp.full(2, state.written < self.length)

    def backward_mask(self, state: Word) -> Bool[Array, " actions"]:
        last = state.letters[state.written - 1]
        return (state.written > 0) & (jnp.arange(2) == last)

    def is_terminal(self, state: Word) -> Bool[Array, ""]:
        return state.written == self.length

    def observe(self, state: Word) -> Array:
        return jnp.append(state.letters, state.written).astype(float)

    def log_reward(self, state: Word) -> Array:
        return jnp.sum(state.letters).astype(float)
