"""The triangle-count random graph of `fig:triangle_case`."""

from itertools import combinations
from math import comb
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..errors import require_whole
from .base import AbstractEnv, Action


class GraphState(NamedTuple):
    decided: Int[Array, ""]
    """How many edges have been decided."""
    edges: Int[Array, ""]
    """Bit $k$ is set when edge $k$ is in the graph."""


class Triangles(AbstractEnv):
    r"""Exponential random graph $p(G) \propto \exp(\beta\, T(G))$, with $T$ the triangle count.

    The $n(n-1)/2$ edges are decided in lexicographic order, 0 to leave one out and 1 to put
    it in, so each graph has one trajectory.

    Attributes:
        nodes: $n$.
        beta: $\beta$.
    """

    nodes: int = 6
    beta: float = 0.2

    def __check_init__(self):
        require_whole("nodes", self.nodes, 3)
        if self.nodes > 8:
            raise ValueError(f"nodes must be from 3 to 8, got {self.nodes}")
        if not np.isfinite(self.beta):
            raise ValueError(f"beta must be finite, got {self.beta}")

    @property
    def num_edges(self) -> int:
        return comb(self.nodes, 2)

    @property
    def num_actions(self) -> int:
        return 2

    @property
    def max_steps(self) -> int:
        return self.num_edges

    def init(self) -> GraphState:
        return GraphState(jnp.array(0, jnp.int32), jnp.array(0, jnp.int32))

    def step(self, state: GraphState, action: Action) -> GraphState:
        bit = jnp.asarray(action, jnp.int32) << state.decided
        return GraphState(state.decided + 1, state.edges | bit)

    def undo(self, state: GraphState, action: Action) -> GraphState:
        decided = state.decided - 1
        return GraphState(decided, state.edges & ~(jnp.asarray(action, jnp.int32) << decided))

    def forward_mask(self, state: GraphState) -> Bool[Array, " actions"]:
        return jnp.full(2, state.decided < self.num_edges)

    def backward_mask(self, state: GraphState) -> Bool[Array, " actions"]:
        last = (state.edges >> jnp.maximum(state.decided - 1, 0)) & 1
        return (state.decided > 0) & (jnp.arange(2) == last)

    def is_terminal(self, state: GraphState) -> Bool[Array, ""]:
        return state.decided == self.num_edges

    def observe(self, state: GraphState) -> Float[Array, " features"]:
        """For each edge, whether it is decided and whether it is there."""
        edge = jnp.arange(self.num_edges)
        return jnp.concatenate([edge < state.decided, (state.edges >> edge) & 1]).astype(float)

    def log_reward(self, state: GraphState) -> Float[Array, ""]:
        return self.beta * self.count_triangles(state).astype(float)

    def log_partial(self, state: GraphState) -> Float[Array, ""]:
        """Of the edges that have been put in."""
        return self.log_reward(state)

    def count_triangles(self, state: GraphState) -> Int[Array, ""]:
        number = {edge: k for k, edge in enumerate(combinations(range(self.nodes), 2))}
        triangles = np.array(
            [
                sum(1 << number[edge] for edge in combinations(triple, 2))
                for triple in combinations(range(self.nodes), 3)
            ],
            np.int32,
        )
        return jnp.sum((state.edges & triangles) == triangles)

    def objects(self) -> GraphState:
        edges = jnp.arange(2**self.num_edges, dtype=jnp.int32)
        return GraphState(jnp.full_like(edges, self.num_edges), edges)
