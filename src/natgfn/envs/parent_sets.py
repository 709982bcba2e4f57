"""Directed acyclic graphs in a fixed node order: one parent set a child."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .base import AbstractEnv, Action


class OrderedDag(NamedTuple):
    decided: Int[Array, ""]
    """How many children have their parents."""
    parents: Int[Array, " nodes"]
    """The parent set of each child, as bits; zero where it is not decided."""


class ParentSets(AbstractEnv):
    r"""$p(G) \propto \exp \sum_j \mathrm{score}_j(\mathrm{Pa}_j)$ over graphs with forward edges.

    Child $j$ chooses its parents among nodes $0, \dots, j - 1$, so no cycle can arise; an
    action is the whole set, as bits. Each graph has one trajectory
    (`app:conditional_fisher_factorization`).

    Attributes:
        scores: for each child, the score of each of its $2^j$ sets.
    """

    scores: tuple[tuple[float, ...], ...] = ((0.0,), (0.0, 1.0), (0.0, 1.0, -1.0, 2.0))

    def __check_init__(self):
        sizes, expected = [len(row) for row in self.scores], [2**j for j in range(len(self.scores))]
        if not sizes or sizes != expected:
            raise ValueError(f"scores must have rows of {expected or [1, 2, 4]} sets, got {sizes}")
        if not np.isfinite(np.concatenate(self.scores)).all():
            raise ValueError("scores must be finite")

    @property
    def nodes(self) -> int:
        return len(self.scores)

    @property
    def num_actions(self) -> int:
        return 2 ** (self.nodes - 1)

    @property
    def max_steps(self) -> int:
        return self.nodes

    def init(self) -> OrderedDag:
        return OrderedDag(jnp.array(0, jnp.int32), jnp.zeros(self.nodes, jnp.int32))

    def step(self, state: OrderedDag, action: Action) -> OrderedDag:
        chosen = state.parents.at[state.decided].set(jnp.asarray(action, jnp.int32))
        return OrderedDag(state.decided + 1, chosen)

    def undo(self, state: OrderedDag, action: Action) -> OrderedDag:
        return OrderedDag(state.decided - 1, state.parents.at[state.decided - 1].set(0))

    def forward_mask(self, state: OrderedDag) -> Bool[Array, " actions"]:
        sets = jnp.arange(self.num_actions) < (1 << state.decided)
        return sets & (state.decided < self.nodes)

    def backward_mask(self, state: OrderedDag) -> Bool[Array, " actions"]:
        last = state.parents[jnp.maximum(state.decided - 1, 0)]
        return (state.decided > 0) & (jnp.arange(self.num_actions) == last)

    def is_terminal(self, state: OrderedDag) -> Bool[Array, ""]:
        return state.decided == self.nodes

    def observe(self, state: OrderedDag) -> Float[Array, " features"]:
        """Whether each child is decided, and the adjacency matrix row by row."""
        node = jnp.arange(self.nodes)
        edges = (state.parents[:, None] >> node) & 1
        return jnp.concatenate([node < state.decided, edges.ravel()]).astype(float)

    def log_reward(self, state: OrderedDag) -> Float[Array, ""]:
        table = np.zeros((self.nodes, self.num_actions))
        for child, row in enumerate(self.scores):
            table[child, : len(row)] = row
        return jnp.sum(jnp.asarray(table)[jnp.arange(self.nodes), state.parents])
