r"""The tree of cliques $C_t = \{v_t\} \cup S_t$, and messages along it, compiled.

A table over contexts and values, `[rows, values]`, is a function of each clique. $S_t$ lies in the
clique of its last variable, the parent of $C_t$: an entry of the parent's table decides which
context of the child applies. A message up adds to every entry what the children say of their
contexts; a message down gives every context the mass of the entries that lead to it. Both are one
scan over chunks of such pairs (entry of the parent, context of the child), sorted by depth:
$O(n k^{w+1})$ for $n$ variables of $k$ values and separators of $w$ variables.
"""

from collections.abc import Callable
from decimal import Decimal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .contexts import Contexts
from .graph import FactorGraph
from .order import separators, table_size, width

Reduce = Callable[[Int[Array, " n"], Float[Array, "n values"]], Float[Array, " n"]]
"""From contexts and what is known of each value there to what a child says of the context."""


class JunctionTree(eqx.Module):
    """The cliques of an order, and the pairs that messages go along.

    Attributes:
        contexts: of the separators.
        sources: the context of the parent's entry, of each pair, in chunks.
        values: the value of the parent's entry.
        targets: the context of the child; the number of contexts where a chunk is padded.
    """

    contexts: Contexts = eqx.field(static=True)
    sources: Int[np.ndarray, "chunks size"]
    values: Int[np.ndarray, "chunks size"]
    targets: Int[np.ndarray, "chunks size"]

    def up(
        self, table: Float[Array, "rows values"], reduce: Reduce
    ) -> tuple[Float[Array, "rows values"], Float[Array, " rows"]]:
        """Each entry with what the children add to it, and that reduced over the values."""

        def collect(table, chunk):
            sources, values, targets = chunk
            near = jnp.minimum(targets, len(table) - 1)
            message = jnp.where(targets < len(table), reduce(near, table[near]), 0.0)
            return table.at[sources, values].add(message), None

        table, _ = jax.lax.scan(collect, table, self._pairs(), reverse=True)
        return table, reduce(jnp.arange(len(table)), table)

    def down(self, probs: Float[Array, "rows values"]) -> Float[Array, " rows"]:
        r"""$p_t(c)$, the occupancy of each context under the conditional laws `probs`."""

        def spread(mass, chunk):
            sources, values, targets = chunk
            return mass.at[targets].add(mass[sources] * probs[sources, values], mode="drop"), None

        start = jnp.zeros(len(probs), probs.dtype).at[self.roots].set(1.0)
        return jax.lax.scan(spread, start, self._pairs())[0]

    @property
    def roots(self) -> Int[np.ndarray, " roots"]:
        """The contexts of the variables that see nothing, one each."""
        alone = [step for step, seen in enumerate(self.contexts.seen) if not seen]
        return self.contexts.starts[alone]

    def _pairs(self) -> tuple[Int[Array, "chunks size"], ...]:
        return jnp.asarray(self.sources), jnp.asarray(self.values), jnp.asarray(self.targets)


def junction_tree(
    graph: FactorGraph, order: tuple[int, ...], most: int | None = None
) -> JunctionTree:
    """The tree of an order.

    Args:
        graph: the model.
        order: the variables, as they are assigned.
        most: entries of all tables, beyond which nothing is allocated.

    Raises:
        TooWide: the tables would have more entries than `most`.
    """
    seen = separators(graph, order)
    size = table_size(graph, seen, order)
    if most is not None and size > most:
        raise TooWide(width(seen), size, most)
    contexts = Contexts(order, graph.cards, seen)
    place = {variable: step for step, variable in enumerate(order)}
    depth = [0] * len(order)
    levels: dict[int, list[tuple[np.ndarray, ...]]] = {}
    for step, variables in enumerate(seen):
        if variables:
            parent = place[variables[-1]]
            depth[step] = depth[parent] + 1
            levels.setdefault(depth[step], []).append(_pairs_of(contexts, parent, step))
    sizes = [sum(len(part[0]) for part in parts) for parts in levels.values()]
    # The mean size of a level, so that padding at most doubles the work.
    chunk = 1 << int(np.ceil(np.log2(max(1.0, np.mean(sizes or [1])))))
    chunks = []
    for level in sorted(levels):
        pairs = np.stack([np.concatenate(part) for part in zip(*levels[level], strict=True)])
        blank = np.array([0, 0, contexts.num_rows])[:, None]
        padding = np.repeat(blank, -pairs.shape[1] % chunk, axis=1)
        chunks.append(np.concatenate([pairs, padding], axis=1).reshape(3, -1, chunk))
    joined = np.concatenate([*chunks, np.zeros((3, 0, chunk))], axis=1).astype(np.int32)
    return JunctionTree(contexts, *joined)


class TooWide(ValueError):
    """The tables of an order are larger than they may be."""

    def __init__(self, width: int, size: int, most: int):
        numbers = Decimal(size)  # which may be more than a float holds
        super().__init__(
            f"the model has width {width} in this order: its tables need {numbers:.3g} numbers "
            f"({numbers / 2**27:.3g} GiB), more than the {most:,} allowed; give another "
            "order, raise the limit, or let the policy see fewer variables"
        )


def _pairs_of(contexts: Contexts, parent: int, child: int) -> tuple[np.ndarray, ...]:
    """Every entry of the parent's table, and the context of the child that it leads to."""
    variable = contexts.order[parent]
    rows = np.arange(contexts.starts[parent], contexts.starts[parent + 1])
    known = dict(zip(contexts.seen[parent], contexts.values(rows).T, strict=False))
    own = np.arange(contexts.cards[variable])
    target = np.full((len(rows), len(own)), contexts.starts[child])
    for place, seen in enumerate(contexts.seen[child]):
        value = own[None] if seen == variable else known[seen][:, None]
        target += value * contexts.table[1, child, place]
    return np.repeat(rows, len(own)), np.tile(own, len(rows)), target.ravel()
