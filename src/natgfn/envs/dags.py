r"""Directed acyclic graphs, one edge after another in any order (`app:sachs_dag_details`)."""

from typing import NamedTuple, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from .base import AbstractEnv, Action


class Dag(NamedTuple):
    """A state of `Dags`: the edges so far."""

    edges: Bool[Array, "d d"]
    """Row is source, column is target."""
    reached: Bool[Array, "d d"]
    """Whether row can be reached from column, as each vertex can from itself: the closure of
    the transpose. Row -> column would then close a cycle."""
    stopped: Bool[Array, ""]


class Dags(AbstractEnv):
    r"""$R(G) = \exp \sum_j w_j(\mathrm{Pa}_j)$ over acyclic graphs, with $w$ from a table.

    Action $i (d - 1) + j - 1\{j > i\}$ adds the edge $i \to j$, the pairs $i \ne j$ row by row, and
    the last action stops. Each edge but those that every graph has can have been the last one, so
    that $P_B$, uniform, is $1 / k!$ for a path that adds $k$ edges.

    Rewards are finite in every state: a parent set has to be allowed, $w_j > -\infty$, before an
    edge that makes it can be added; the source has the edges that every allowed graph has; and
    without some of the others, a parent set must be allowed too, so that all graphs are reached.

    Attributes:
        log_weights: $w_j(\mathrm{Pa})$ for each child and set of parents, as the bits of the
            column (`natgfn.dag.log_weights`); $-\infty$ where a set is not allowed.
        required: the edges that every graph has.
    """

    log_weights: Float[np.ndarray, "d sets"]
    required: tuple[tuple[int, int], ...] = eqx.field(static=True)
    limited: bool = eqx.field(static=True)
    """Whether there are sets that are not allowed."""

    def __init__(self, log_weights: Float[np.ndarray, "d sets"]):
        size, columns = len(log_weights), np.arange(log_weights.shape[1])
        if len(columns) != 2**size:
            raise ValueError(
                f"expected {2**size} sets of parents for {size} children, got {len(columns)}"
            )
        if np.isnan(log_weights).any() or (log_weights == np.inf).any():
            raise ValueError("log_weights must be numbers or minus infinity")
        edges = np.zeros((size, size), bool)
        for child, allowed in enumerate(log_weights > -np.inf):
            if allowed[columns >> child & 1 == 1].any():
                raise ValueError(f"vertex {child} must not be a parent of its own")
            in_all = np.bitwise_and.reduce(columns[allowed])
            edges[:, child] = in_all >> np.arange(size) & 1
            fewer = [allowed[columns & ~(1 << i)] for i in np.flatnonzero(~edges[:, child])]
            if not np.all(fewer, where=allowed):
                raise ValueError(
                    f"vertex {child}: a set of parents must still be allowed without any of those "
                    "that are not required"
                )
        if _closure(edges).diagonal().any():
            raise ValueError("the edges that every graph has form a cycle")
        self.log_weights = log_weights
        self.required = tuple((int(i), int(j)) for i, j in np.argwhere(edges))
        self.limited = int(np.isfinite(log_weights).sum()) < size * len(columns) // 2

    @property
    def size(self) -> int:
        """The number of vertices $d$."""
        return len(self.log_weights)

    @property
    def max_steps(self) -> int:
        return self.size * (self.size - 1) // 2 - len(self.required) + 1

    @property
    def always(self) -> Bool[np.ndarray, "d d"]:
        """`required` as a matrix."""
        edges = np.zeros((self.size, self.size), bool)
        for edge in self.required:
            edges[edge] = True
        return edges

    @property
    def pairs(self) -> tuple[Int[np.ndarray, " edges"], Int[np.ndarray, " edges"]]:
        """The source and the target of each edge, in the order of the actions."""
        source, target = np.nonzero(~np.eye(self.size, dtype=bool))
        return source, target

    @property
    def num_actions(self) -> int:
        return self.size * (self.size - 1) + 1

    def init(self) -> Dag:
        edges = self.always
        reached = _closure(edges.T) | np.eye(self.size, dtype=bool)
        return Dag(jnp.asarray(edges), jnp.asarray(reached), jnp.array(False))

    def step(self, state: Dag, action: Action) -> Dag:
        added = self._edge(action)
        source, target = jnp.any(added, axis=1), jnp.any(added, axis=0)
        # What the target reaches can now be reached from all that reach the source.
        below = jnp.any(state.reached & target, axis=1)
        above = jnp.any(state.reached & source[:, None], axis=0)
        reached = state.reached | below[:, None] & above
        stopped = state.stopped | (jnp.asarray(action) == self.num_actions - 1)
        return Dag(state.edges | added, reached, stopped)

    def undo(self, state: Dag, action: Action) -> Dag:
        edges = state.edges & ~self._edge(action)
        reached = jnp.asarray(_closure(edges.T)) | jnp.eye(self.size, dtype=bool)
        return Dag(edges, reached, jnp.array(False))

    def _edge(self, action: Action) -> Bool[Array, "d d"]:
        source, target = (jnp.asarray(x) for x in self.pairs)
        number = jnp.arange(self.num_actions - 1)
        return jnp.zeros((self.size, self.size), bool).at[source, target].set(number == action)

    def forward_mask(self, state: Dag) -> Bool[Array, " actions"]:
        source, target = self.pairs
        free = ~(state.edges | state.reached) & self.allowed(state.edges)
        return jnp.append(free[source, target], True) & ~state.stopped

    def backward_mask(self, state: Dag) -> Bool[Array, " actions"]:
        source, target = self.pairs
        optional = (state.edges & ~jnp.asarray(self.always))[source, target]
        return jnp.append(optional & ~state.stopped, state.stopped)

    def is_terminal(self, state: Dag) -> Bool[Array, ""]:
        return state.stopped

    def observe(self, state: Dag) -> Float[Array, " features"]:
        """Which edges there are, and which would close a cycle, in the order of the actions."""
        source, target = self.pairs
        both = jnp.stack([state.edges[source, target], state.reached[source, target]])
        return both.ravel().astype(float)

    def log_partial(self, state: Dag) -> Float[Array, ""]:
        return self.log_reward(state)

    def allowed(self, edges: Bool[Array, "d d"]) -> Bool[Array, "d d"] | Bool[Array, ""]:
        """Whether a graph may have each edge besides those that it has, cycles apart."""
        if not self.limited:
            return jnp.array(True)
        with_it = parents(edges) | (1 << jnp.arange(self.size))[:, None]
        return jnp.asarray(self.log_weights)[jnp.arange(self.size), with_it] > -jnp.inf

    def log_reward(self, state: Dag) -> Float[Array, ""]:
        table = jnp.asarray(self.log_weights)
        return jnp.sum(table[jnp.arange(self.size), parents(state.edges)])

    def log_rewards(self, graphs: Shaped[np.ndarray, "n d d"]) -> Float[np.ndarray, " n"]:
        r"""$\log R$ of many graphs, in float64: for reports, not for training."""
        columns = np.einsum("nij,i->nj", graphs.astype(np.int64), 1 << np.arange(self.size))
        return self.log_weights[np.arange(self.size), columns].sum(axis=1)


def parents(edges: Bool[Array, "d d"]) -> Int[Array, " d"]:
    """The parents of each vertex, as bits."""
    return jnp.sum(edges.astype(jnp.int32) << jnp.arange(len(edges))[:, None], axis=0)


Square: TypeAlias = Bool[Array, "d d"] | Bool[np.ndarray, "d d"]
"""A matrix of JAX, or of NumPy."""


def _closure(edges: Square) -> Square:
    """Whether a path of one edge or more leads from row to column."""
    paths = edges.astype(np.float32)
    for _ in range(max(1, (len(edges) - 1).bit_length())):
        paths = (paths + paths @ paths).clip(max=1)
    return paths > 0
