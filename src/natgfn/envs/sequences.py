"""Sequences over an alphabet: three ways to build them, and rewards from a table."""

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..errors import require_whole
from .base import AbstractEnv, Action


class Sequence(NamedTuple):
    """A sequence that may have empty positions."""

    letters: Int[Array, " positions"]
    """Each a number from 0; `num_letters` where the position is empty."""


class AbstractSequences(AbstractEnv):
    """Sequences of a fixed number of letters, complete when no position is empty.

    A reward of your own is a subclass of one of the three ways to build them, `AbstractFilled`,
    `AbstractAppended` or `AbstractExtended`, with `max_steps`, `num_letters` and `log_reward`.
    """

    @property
    @abstractmethod
    def num_letters(self) -> int:
        """How many different letters there are; also the number of the empty one."""

    @property
    def sides(self) -> tuple[int, ...]:
        return (self.num_letters + 1,) * self.max_steps

    def coordinates(self, state: Sequence) -> Int[Array, " positions"]:
        return state.letters

    def init(self) -> Sequence:
        return Sequence(jnp.full(self.max_steps, self.num_letters, jnp.int32))

    def is_terminal(self, state: Sequence) -> Bool[Array, ""]:
        return jnp.all(state.letters < self.num_letters)

    def observe(self, state: Sequence) -> Float[Array, " features"]:
        """One-hot letters, the empty one last."""
        return (state.letters[:, None] == jnp.arange(self.num_letters + 1)).astype(float).ravel()

    @property
    def num_tokens(self) -> int:
        return self.num_letters

    def tokens(self, state: Sequence) -> Int[Array, " positions"]:
        """The letters."""
        return jnp.where(state.letters < self.num_letters, state.letters, -1)

    def _filled(self, state: Sequence) -> Int[Array, ""]:
        return jnp.sum(state.letters < self.num_letters)


class AbstractFilled(AbstractSequences):
    """Fill any empty position: of $k$ letters, action $k i + w$ puts letter $w$ at position $i$."""

    @property
    def num_actions(self) -> int:
        return self.max_steps * self.num_letters

    def step(self, state: Sequence, action: Action) -> Sequence:
        position, letter = jnp.divmod(jnp.asarray(action, jnp.int32), self.num_letters)
        return Sequence(state.letters.at[position].set(letter))

    def undo(self, state: Sequence, action: Action) -> Sequence:
        return Sequence(state.letters.at[action // self.num_letters].set(self.num_letters))

    def forward_mask(self, state: Sequence) -> Bool[Array, " actions"]:
        return jnp.repeat(state.letters == self.num_letters, self.num_letters)

    def backward_mask(self, state: Sequence) -> Bool[Array, " actions"]:
        return (state.letters[:, None] == jnp.arange(self.num_letters)).ravel()

    @property
    def num_tokens(self) -> int:
        return self.num_letters + 1

    def tokens(self, state: Sequence) -> Int[Array, " positions"]:
        """The letters, the empty one too: it is what an action fills."""
        return state.letters


class AbstractAppended(AbstractSequences):
    """Append letters from left to right: the action is the letter."""

    @property
    def num_actions(self) -> int:
        return self.num_letters

    def step(self, state: Sequence, action: Action) -> Sequence:
        letter = jnp.asarray(action, jnp.int32)
        return Sequence(state.letters.at[self._filled(state)].set(letter))

    def undo(self, state: Sequence, action: Action) -> Sequence:
        return Sequence(state.letters.at[self._filled(state) - 1].set(self.num_letters))

    def forward_mask(self, state: Sequence) -> Bool[Array, " actions"]:
        return jnp.full(self.num_actions, ~self.is_terminal(state))

    def backward_mask(self, state: Sequence) -> Bool[Array, " actions"]:
        last = state.letters[jnp.maximum(self._filled(state) - 1, 0)]  # empty in the source
        return jnp.arange(self.num_actions) == last


class AbstractExtended(AbstractSequences):
    """Extend at either end: with $k$ letters, action $w$ appends letter $w$ and $k + w$ puts it
    before the first. The first letter is appended: there is one way to it."""

    @property
    def num_actions(self) -> int:
        return 2 * self.num_letters

    def step(self, state: Sequence, action: Action) -> Sequence:
        before, letter = jnp.divmod(jnp.asarray(action, jnp.int32), self.num_letters)
        appended = state.letters.at[self._filled(state)].set(letter)
        prepended = jnp.roll(state.letters, 1).at[0].set(letter)
        return Sequence(jnp.where(before == 1, prepended, appended))

    def undo(self, state: Sequence, action: Action) -> Sequence:
        without_last = state.letters.at[self._filled(state) - 1].set(self.num_letters)
        without_first = jnp.roll(state.letters.at[0].set(self.num_letters), -1)
        return Sequence(jnp.where(action >= self.num_letters, without_first, without_last))

    def forward_mask(self, state: Sequence) -> Bool[Array, " actions"]:
        open_, begun = ~self.is_terminal(state), self._filled(state) > 0
        return jnp.repeat(jnp.array([open_, open_ & begun]), self.num_letters)

    def backward_mask(self, state: Sequence) -> Bool[Array, " actions"]:
        filled, letters = self._filled(state), jnp.arange(self.num_letters)
        last = state.letters[jnp.maximum(filled - 1, 0)]  # empty in the source
        first = jnp.where(filled > 1, state.letters[0], self.num_letters)
        return jnp.concatenate([letters == last, letters == first])


class AbstractTable(AbstractSequences):
    """Rewards of all sequences, in a table."""

    @property
    @abstractmethod
    def rewards(self) -> Float[np.ndarray, " sequences"]:
        """Positive, in lexicographic order: the last letter varies fastest."""

    @property
    def max_steps(self) -> int:
        return round(np.log(len(self.rewards)) / np.log(self.num_letters))

    def log_reward(self, state: Sequence) -> Float[Array, ""]:
        places = self.num_letters ** np.arange(self.max_steps, dtype=np.int32)[::-1]
        return jnp.log(jnp.asarray(self.rewards)[jnp.sum(state.letters * places)])

    def objects(self) -> Sequence:
        shape = (self.num_letters,) * self.max_steps
        every = np.stack(np.unravel_index(np.arange(len(self.rewards)), shape), axis=1)
        return Sequence(jnp.asarray(every.astype(np.int32)))

    def distance(self, one: Sequence, other: Sequence) -> Float[Array, ""]:
        """Hamming, in letters."""
        return jnp.sum(one.letters != other.letters).astype(float)


class AbstractGiven(AbstractTable):
    """Rewards in a table that the user gives."""

    table: eqx.AbstractVar[Float[np.ndarray, " sequences"]]
    """Rewards, positive, in lexicographic order: the last letter varies fastest."""
    letters: eqx.AbstractVar[int]
    """How many different ones there are."""

    def __check_init__(self):
        require_whole("letters", self.letters, 2)
        size = len(self.table)
        if size < 2 or self.letters**self.max_steps != size:
            raise ValueError(
                f"table must have a power of letters={self.letters} rewards, got {size}"
            )
        if not np.all(np.isfinite(self.table) & (np.asarray(self.table) > 0)):
            raise ValueError("every reward in the table must be positive and finite")

    @property
    def num_letters(self) -> int:
        return self.letters

    @property
    def rewards(self) -> Float[np.ndarray, " sequences"]:
        return self.table


class FilledSequences(AbstractFilled, AbstractGiven):
    """Sequences with a table of rewards, filled in any order."""

    table: Float[np.ndarray, " sequences"]
    letters: int = 2


class AppendedSequences(AbstractAppended, AbstractGiven):
    """Sequences with a table of rewards, appended letter by letter."""

    table: Float[np.ndarray, " sequences"]
    letters: int = 2


class ExtendedSequences(AbstractExtended, AbstractGiven):
    """Sequences with a table of rewards, extended at either end."""

    table: Float[np.ndarray, " sequences"]
    letters: int = 2
