"""Contexts: the variable to assign next, and the values of the earlier ones that are seen."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int


@dataclass(frozen=True)
class Contexts:
    r"""The local summaries $c_t(s) = (t, x_{S_t})$ (`app:computational_regimes_detailed`).

    Contexts are numbered, step after step; those of one step by the values that are seen, the last
    one fastest.

    Attributes:
        order: the variables, in the order of their assignment.
        cards: the number of values of each variable.
        seen: $S_t$ of each step, earlier variables sorted by their time of assignment.
    """

    order: tuple[int, ...]
    cards: tuple[int, ...]
    seen: tuple[tuple[int, ...], ...]

    @property
    def num_steps(self) -> int:
        return len(self.order)

    @property
    def num_values(self) -> int:
        """Of the variable with the most."""
        return max(self.cards, default=1)

    @cached_property
    def starts(self) -> Int[np.ndarray, " steps_and_end"]:
        """The first context of each step, and their number."""
        counts = (prod(self.cards[v] for v in seen) for seen in self.seen)
        return np.array([0, *accumulate(counts)], np.int64)

    @property
    def num_rows(self) -> int:
        """How many contexts there are."""
        return int(self.starts[-1])

    @cached_property
    def steps(self) -> Int[np.ndarray, " rows"]:
        """Of each context."""
        return np.repeat(np.arange(self.num_steps), np.diff(self.starts)).astype(np.int32)

    @cached_property
    def table(self) -> Int[np.ndarray, "3 steps width"]:
        """The variables that are seen, how much a unit of each adds to the number of a context, and
        how many values it has; 0, 0 and 1 where there are fewer."""
        found = np.zeros((3, self.num_steps, max(1, max(map(len, self.seen), default=0))), np.int32)
        found[2] = 1
        for step, seen in enumerate(self.seen):
            cards = [self.cards[v] for v in seen]
            strides = [prod(cards[place + 1 :]) for place in range(len(seen))]
            found[:, step, : len(seen)] = seen, strides, cards
        return found

    def row(self, values: Int[Array, " variables"], step: Int[Array, ""]) -> Int[Array, ""]:
        """The context of a partial assignment; their number if it is complete."""
        here = jnp.minimum(step, self.num_steps - 1)
        seen, strides, _ = jnp.asarray(self.table)[:, here]
        row = jnp.asarray(self.starts, jnp.int32)[here] + jnp.sum(strides * values[seen])
        return jnp.where(step < self.num_steps, row, self.num_rows)

    def values(self, rows: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n width"]:
        """What is seen in contexts; zero where there is nothing."""
        steps = self.steps[rows]
        _, strides, cards = self.table[:, steps]
        inside = (rows - self.starts[steps])[:, None]
        return np.where(strides > 0, inside // np.maximum(strides, 1) % cards, 0)

    def within(self, finer: "Contexts") -> Int[np.ndarray, " rows"]:
        """The context here of each context of others that see at least as much."""
        rows = np.arange(finer.num_rows)
        values, steps = finer.values(rows), finer.steps
        found = self.starts[steps].copy()
        for step, seen in enumerate(self.seen):
            if missing := set(seen) - set(finer.seen[step]):
                raise ValueError(f"step {step} must see {sorted(missing)}, which it does not")
            here = slice(finer.starts[step], finer.starts[step + 1])
            for place, variable in enumerate(seen):
                column = finer.seen[step].index(variable)
                found[here] += values[here, column] * self.table[1, step, place]
        return found
