r"""The structured regime, approximate: what contexts leave out is taken to be independent.

A context $x_{T_t}$ is put together from the cliques $D_u = \{v_u\} \cup T_u$ of earlier steps, the
latest first: its variables in $D_u$ as that clique has them, the others from the next clique, given
what the two share,
$$\widetilde p_t(x_{T_t}) = \prod_j \widetilde p(x_{N_j} \mid x_{O_j}), \qquad
  N_j \cup O_j \subseteq D_{u_j}.$$
Where one clique has all of them, as with whole separators, nothing is left out and $p_t$ is exact.
"""

from functools import lru_cache
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..envs import AbstractEnv
from ..fisher import Occupancy
from ..graphical import Contexts
from ..objectives import Batch, Expected
from ..policies import AbstractPolicy, context_probs, contexts_of, require_assignments
from .base import AbstractOccupancy


class Truncated(AbstractOccupancy):
    r"""$\widetilde p_t(c)$ of what the policy sees, without a junction tree: for any width.

    Its Fisher is a surrogate, $\widetilde M_t = \sum_c \widetilde p_t(c)\, \overline A_t(c)$
    (`app:computational_regimes_detailed`).
    """

    def __call__(
        self, env: AbstractEnv, policy: AbstractPolicy, batch: Batch | Expected | None = None
    ) -> Occupancy:
        env = require_assignments(env, "occupancy.Truncated")
        contexts, probs = contexts_of(policy), context_probs(env, policy)
        weights = _propagated(pieces_of(contexts), probs)
        return Occupancy(jnp.arange(weights.size), weights, complete=True, contexts=True)


class Pieces(NamedTuple):
    """How the contexts of each step are put together; -1 where there is nothing.

    A cell is an assignment of the variables that a context takes from one clique.
    """

    rows: Int[np.ndarray, "steps rows"]
    """The contexts of a step."""
    entries: Int[np.ndarray, "steps pieces entries"]
    """Of the table of the clique that a piece comes from."""
    cells: Int[np.ndarray, "steps pieces entries"]
    """The cell that each of these entries belongs to."""
    shared: Int[np.ndarray, "steps pieces cells"]
    """Of each cell, the number of what it has in common with the pieces before."""
    places: Int[np.ndarray, "steps pieces rows"]
    """The cell of each context."""


def _propagated(pieces: Pieces, probs: Float[Array, "rows values"]) -> Float[Array, " rows"]:
    flat = probs.ravel()

    def at_step(mass, step: Pieces):
        weights = jnp.ones(step.rows.shape, probs.dtype)
        for entries, cells, shared, places in zip(*step[1:], strict=True):
            joint = mass[entries // probs.shape[1]] * flat[entries]
            table = jnp.zeros(shared.shape, probs.dtype)
            table = table.at[cells].add(jnp.where(entries >= 0, joint, 0.0), mode="drop")
            total = jnp.zeros_like(table).at[shared].add(table, mode="drop")[shared]
            given = jnp.where(total > 0, table / jnp.where(total > 0, total, 1.0), 0.0)
            weights = weights * jnp.where(places >= 0, given[places], 1.0)
        return mass.at[_beyond(jnp.asarray(step.rows), mass.size)].set(weights, mode="drop"), None

    start = jnp.zeros(len(probs), probs.dtype)
    return jax.lax.scan(at_step, start, jax.tree.map(jnp.asarray, pieces))[0]


def _beyond(index: Int[Array, " n"], size: int) -> Int[Array, " n"]:
    """The same, with what is negative behind the end, so that it is dropped."""
    return jnp.where(index < 0, size, index)


@lru_cache(maxsize=8)
def pieces_of(contexts: Contexts) -> Pieces:
    """Made once for each kind of contexts."""
    place = {variable: step for step, variable in enumerate(contexts.order)}
    found = []
    for step, seen in enumerate(contexts.seen):
        rows = np.arange(contexts.starts[step], contexts.starts[step + 1])
        known = dict(zip(seen, contexts.values(rows).T, strict=False))
        left, parts = set(seen), []
        while left:
            source = max(place[variable] for variable in left)
            clique = (*contexts.seen[source], contexts.order[source])
            piece = [variable for variable in seen if variable in clique]
            common = [variable for variable in piece if variable not in left]
            left -= set(piece)
            parts.append(_piece(contexts, source, piece, common, known))
        found.append((rows, parts))
    count = max(1, *(len(parts) for _, parts in found))
    kinds = [
        _padded([[part[kind] for part in parts] for _, parts in found], count) for kind in range(4)
    ]
    rows = _padded([[rows] for rows, _ in found], 1)[:, 0]
    return Pieces(rows, *kinds)


def _piece(
    contexts: Contexts, source: int, piece: list[int], common: list[int], known: dict
) -> tuple[np.ndarray, ...]:
    """Entries of a clique, their cells, what each cell has in common, and cells of contexts."""
    rows = np.arange(contexts.starts[source], contexts.starts[source + 1])
    own = contexts.order[source]
    card = contexts.cards[own]
    values = dict(zip(contexts.seen[source], contexts.values(rows).T, strict=False))
    values = {v: np.repeat(x, card) for v, x in values.items()} | {
        own: np.tile(np.arange(card), len(rows))
    }
    entries = (rows[:, None] * contexts.num_values + np.arange(card)).ravel()
    cells = _number(contexts, piece, values)
    grid = np.indices([contexts.cards[v] for v in piece]).reshape(len(piece), -1)
    by_cell = dict(zip(piece, grid, strict=True))
    shared = _number(contexts, common, by_cell) + np.zeros(grid.shape[1], int)
    return entries, cells, shared, _number(contexts, piece, known)


def _number(contexts: Contexts, variables: list[int], values: dict) -> np.ndarray:
    """One number for the values of some variables, the last one fastest."""
    total = np.zeros(1, int)
    for place, variable in enumerate(variables):
        total = total + values[variable] * prod(contexts.cards[v] for v in variables[place + 1 :])
    return total


def _padded(arrays: list[list[np.ndarray]], count: int) -> Int[np.ndarray, "steps count size"]:
    size = max([1, *(len(array) for parts in arrays for array in parts)])
    whole = np.full((len(arrays), count, size), -1, np.int32)
    for step, parts in enumerate(arrays):
        for number, array in enumerate(parts):
            whole[step, number, : len(array)] = array
    return whole
