"""Subsets of fixed size: $k$ of $n$ items, one item a step."""

from itertools import combinations
from math import comb
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..errors import require_whole
from .base import AbstractEnv, Action

_MOST_LISTED = 2**20


class Subset(NamedTuple):
    """The items that have been chosen."""

    members: Bool[Array, " items"]


class AbstractSubsets(AbstractEnv):
    r"""Subsets of $k$ of $n$ items: action $i$ adds item $i$, in any order.

    There are $\binom nk$ objects, with $k!$ trajectories to each. A reward of your own is a
    subclass with `num_actions` ($n$), `max_steps` ($k$) and `log_reward`.
    """

    def init(self) -> Subset:
        return Subset(jnp.zeros(self.num_actions, bool))

    def step(self, state: Subset, action: Action) -> Subset:
        return Subset(state.members.at[action].set(True))

    def undo(self, state: Subset, action: Action) -> Subset:
        return Subset(state.members.at[action].set(False))

    def forward_mask(self, state: Subset) -> Bool[Array, " actions"]:
        return ~state.members & ~self.is_terminal(state)

    def backward_mask(self, state: Subset) -> Bool[Array, " actions"]:
        return state.members

    def is_terminal(self, state: Subset) -> Bool[Array, ""]:
        return jnp.sum(state.members) == self.max_steps

    def observe(self, state: Subset) -> Float[Array, " features"]:
        """Whether each item has been chosen."""
        return state.members.astype(float)

    def distance(self, one: Subset, other: Subset) -> Float[Array, ""]:
        """How many items of one are not in the other."""
        return jnp.sum(one.members & ~other.members).astype(float)

    def objects(self) -> Subset:
        items, size = self.num_actions, self.max_steps
        if (count := comb(items, size)) > _MOST_LISTED:
            given = f"{size} of {items} are {count:,}"
            raise ValueError(f"at most {_MOST_LISTED:,} subsets can be listed: {given}")
        chosen = np.array(list(combinations(range(items), size)))
        members = np.zeros((count, items), bool)
        np.put_along_axis(members, chosen, True, axis=1)
        return Subset(jnp.asarray(members))


class Subsets(AbstractSubsets):
    r"""Subsets of $k$ items, with weights of items and of pairs.

    $$\log R(S) = \sum_{i \in S} w_i + \sum_{\{i, j\} \subseteq S} v_{ij}.$$

    Attributes:
        log_weights: $w_i$ of each item.
        size: $k$, items of a subset.
        pairs: two items and their $v_{ij}$, for each pair that has one; those of a pair that is
            given twice add up.
    """

    log_weights: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5)
    size: int = 4
    pairs: tuple[tuple[int, int, float], ...] = ()

    def __check_init__(self):
        items = len(self.log_weights)
        if not items:
            raise ValueError("log_weights must have a number for each item, got none")
        require_whole("size", self.size, 1, items)
        for one, other, _ in self.pairs:
            for item in (one, other):
                require_whole("an item of pairs", item, 0, items - 1)
            if one == other:
                raise ValueError(f"a pair must be of two different items, got {one} twice")
        if not np.isfinite([*self.log_weights, *(v for *_, v in self.pairs)]).all():
            raise ValueError("log_weights, and the numbers of pairs, must be finite")

    @property
    def num_actions(self) -> int:
        return len(self.log_weights)

    @property
    def max_steps(self) -> int:
        return self.size

    def log_reward(self, state: Subset) -> Float[Array, ""]:
        both = np.array([pair[:2] for pair in self.pairs], np.int32).reshape(-1, 2)
        values = np.array([*self.log_weights, *(v for *_, v in self.pairs)])
        counts = jnp.concatenate([state.members, jnp.all(state.members[both], axis=1)])
        return jnp.sum(jnp.where(counts, jnp.asarray(values), 0.0))

    def log_partial(self, state: Subset) -> Float[Array, ""]:
        """Of the items that have been chosen."""
        return self.log_reward(state)

    @property
    def log_z(self) -> float | None:
        r"""$\log e_k(e^{w_1}, \dots, e^{w_n})$, an elementary symmetric polynomial, from
        $e_j(w_1, \dots, w_i) = e_j(w_1, \dots, w_{i-1}) + e^{w_i}\, e_{j-1}(w_1, \dots, w_{i-1})$;
        None where there are pairs."""
        if self.pairs:
            return None
        log_sums = np.array([0.0, *[-np.inf] * self.size])
        for weight in self.log_weights:
            log_sums[1:] = np.logaddexp(log_sums[1:], log_sums[:-1] + weight)
        return float(log_sums[-1])
