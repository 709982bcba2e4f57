r"""Acyclic graphs layer by layer, with the parents of each vertex summed out.

A graph has one *root partition*: its sources, then what becomes a source once those are removed,
and so on. A vertex $j$ whose predecessors are $U$, of which $L$ is the layer before its own, has
its parents in $U$ and at least one of them in $L$. So the graphs of a partition have the weight
$$R = \prod_j B_j(U_j, L_j), \qquad B_j(U, L) =
  \sum_{\mathrm{Pa} \subseteq U,\, \mathrm{Pa} \cap L \ne \emptyset} e^{w_j(\mathrm{Pa})},$$
where a source has no parents, and partitions drawn in proportion to $R$ become graphs drawn from
the posterior once each vertex has drawn its parents, independently of all others.

**Which parents.** Of $K$ candidates any, and of the others at most one: with
$$A_{js}(T) = \sum_{S \subseteq T} e^{w_j(S \cup s)}, \qquad B_j(U, L) = \sum_{s \in U}
  A_{js}(U) - 1\{s \notin L\}\, A_{js}(U \setminus L)$$
for no other, $s = \emptyset$, and for each of them; sets are cut to the candidates.

**Accuracy.** No term of the sum is negative, and each is computed from
$\log A(U) - \log A(U \setminus L)$, which has to be right where it is close to zero: logarithms are
relative to the total of the child and kept as two float32 numbers, the second what rounding took
from the first. So differences are good to $10^{-12}$ in float32 too.

**What a policy sees** need not be exact, as rewards are: with $A_{js}(T) \approx
A_{j\emptyset}(T)\, e_{js}$, where $e_{js}$ is the ratio for all candidates, what others add up to
is a matrix product. An update of 37 variables, 12 of them candidates, takes a quarter of the time.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int, Int8

from .base import AbstractEnv, Action

_LEAST = 20.0
"""Nats: local sums that are smaller beside the total of their child look alike to a network."""

_FLOOR = 27.0
"""Nats by which $B_j(U, L)$ is taken to be below $A_j(U)$ where rounding leaves nothing of it."""


class Partition(NamedTuple):
    """A state of `Partitions`: the layers so far."""

    layer: Int8[Array, " d"]
    """The number of the layer of each vertex, from 0; -1 where it has none yet."""
    growing: Int8[Array, ""]
    """The number of the layer to which vertices are added."""


class Sums(NamedTuple):
    r"""What the predecessors of each vertex say, relative to $A_j$ of all its parent sets."""

    meeting: Float[Array, " d"]
    r"""$\log B_j(U, L)$."""
    within: Float[Array, " d"]
    r"""$\log \sum_{s \in U} A_{js}(U)$."""


class Partitions(AbstractEnv):
    r"""$R = \prod_j B_j(U_j, L_j) / A_j$ over root partitions, $A_j$ the total of each child.

    Action $j < d$ adds vertex $j$ to the growing layer, and action $d$ closes that layer. The
    vertices of a layer come in any order, so that $P_B$, uniform, is $\prod 1 / |L|!$. The object
    is complete with its last vertex. A layer is closed only where every vertex that is left can
    still get a parent in the layer before its own.

    Attributes:
        log_weights: $w_j(S \cup s)$ at `[j, s, S]`: $S$ as bits, the first candidate lowest, and
            $s$ nothing at 0, then the vertices that are no candidates of $j$, ascending;
            $-\infty$ where a set is not allowed.
        candidates: of each child; those that it must have are among them.
        log_sums: $\log A_{js}(T) - \log A_j$ at `[j, T, s]`, as a number and what is left of it; or
            as one number, if that is in float64.
        ratios: $e_{js}$ of each vertex (column) that is no candidate of a child (row), else zero.
        log_total: $\sum_j \log A_j$, in nats: what $\log R$ is relative to.
        bits: what each vertex (column) counts in the sets of candidates of each child (row).
        others: the vertices that are no candidates of each child, ascending.
        required: whether every graph has the edge from row to column.
        joins: whether row may be a parent of column besides those that column must have.
    """

    log_weights: Float[np.ndarray, "d slots sets"]
    candidates: Int[np.ndarray, "d K"]
    log_sums: Float[np.ndarray, "d sets slots parts"]
    ratios: Float32[np.ndarray, "d d"]
    bits: Int[np.ndarray, "d d"]
    others: Int[np.ndarray, "d others"]
    required: Bool[np.ndarray, "d d"]
    joins: Bool[np.ndarray, "d d"]
    log_total: float = eqx.field(static=True)
    limited: bool = eqx.field(static=True)
    """Whether there are edges that no graph has, or that every graph has."""

    def __init__(
        self, log_weights: Float[np.ndarray, "d slots sets"], candidates: Int[np.ndarray, "d K"]
    ):
        size, slots, sets = log_weights.shape
        number = candidates.shape[1]
        if candidates.shape[0] != size or sets != 2**number or slots != size - number:
            raise ValueError(
                f"expected log_weights of shape {(size, size - number, 2**number)} for {number} "
                f"candidates of each of {size} children, got {log_weights.shape}"
            )
        if np.isnan(log_weights).any() or (log_weights == np.inf).any():
            raise ValueError("log_weights must be numbers or minus infinity")
        for child, row in enumerate(candidates):
            if len({child, *row.tolist()}) != number + 1 or not np.all((row >= 0) & (row < size)):
                raise ValueError(f"candidates of vertex {child} must be {number} other vertices")
        self.log_weights, self.candidates = log_weights, candidates
        self.bits = np.zeros((size, size), np.int32)
        np.put_along_axis(self.bits, candidates, 1 << np.arange(number, dtype=np.int32), axis=1)
        free = (self.bits == 0) & ~np.eye(size, dtype=bool)
        self.others = np.argwhere(free)[:, 1].reshape(size, slots - 1).astype(np.int32)
        self.required, self.joins = _constraints(log_weights, candidates, self.others)
        with np.errstate(invalid="ignore"):
            sums = _log_sums(log_weights)
            whole = sums[..., -1]
            totals = np.logaddexp.reduce(whole, axis=1)
            sums = np.moveaxis(sums - totals[:, None, None], 1, 2)
            first = sums.astype(np.float32)
            left = np.where(np.isfinite(sums), sums - first, 0.0).astype(np.float32)
        self.log_sums = np.stack([first, left], axis=-1)
        self.ratios = np.zeros((size, size), np.float32)
        some = np.exp(np.minimum(whole[:, 1:] - whole[:, :1], _LEAST))
        np.put_along_axis(self.ratios, self.others, some.astype(np.float32), axis=1)
        self.log_total = float(totals.sum())
        free = np.array_equal(self.joins, ~np.eye(size, dtype=bool))
        self.limited = bool(self.required.any() or not free)

    @property
    def size(self) -> int:
        """The number of vertices $d$."""
        return len(self.bits)

    @property
    def num_actions(self) -> int:
        return self.size + 1

    @property
    def max_steps(self) -> int:
        return 2 * self.size - 1

    def init(self) -> Partition:
        return Partition(jnp.full(self.size, -1, jnp.int8), jnp.array(0, jnp.int8))

    def step(self, state: Partition, action: Action) -> Partition:
        added = jnp.arange(self.size) == action
        layer = jnp.where(added, state.growing, state.layer)
        closed = jnp.asarray(action == self.size)
        return Partition(layer, state.growing + closed.astype(jnp.int8))

    def undo(self, state: Partition, action: Action) -> Partition:
        removed = jnp.arange(self.size) == action
        closed = jnp.asarray(action == self.size)
        layer = jnp.where(removed, jnp.int8(-1), state.layer)
        return Partition(layer, state.growing - closed.astype(jnp.int8))

    def forward_mask(self, state: Partition) -> Bool[Array, " actions"]:
        left = state.layer < 0
        close = jnp.any(left) & jnp.any(state.layer == state.growing)
        if self.limited:
            close &= jnp.all(self._reached(state))
        return jnp.append(left & self._possible(*self.predecessors(state)), close)

    def _possible(
        self, before: Bool[Array, "rows d"], last: Bool[Array, "rows d"]
    ) -> Bool[Array, " rows"] | Bool[Array, " d"]:
        """Whether $B_j$ of each child is above zero, for sets of each, or one for all."""
        source = ~jnp.any(before, axis=1)
        if not self.limited:
            return source | jnp.any(last, axis=1)
        have = ~jnp.any(jnp.asarray(self.required).T & ~before, axis=1)
        return have & (source | jnp.any(jnp.asarray(self.joins).T & last, axis=1))

    def _reached(self, state: Partition) -> Bool[Array, " d"]:
        """Which vertices have a layer, or can get one if the growing one is closed.

        Once the vertices that it must have as parents have layers, the last of them may be in
        the layer before its own; a vertex that waits for none of them needs some other parent.
        """
        needed, joins = jnp.asarray(self.required), jnp.asarray(self.joins)
        placed = state.layer >= 0
        waits = jnp.any(needed & ~placed[:, None], axis=0)

        def spread(_, found):
            have = ~jnp.any(needed & ~(placed | found)[:, None], axis=0)
            return found | ~placed & have & (waits | jnp.any(joins & found[:, None], axis=0))

        growing = state.layer == state.growing
        return placed | jax.lax.fori_loop(0, self.size, spread, growing)

    def backward_mask(self, state: Partition) -> Bool[Array, " actions"]:
        growing = state.layer == state.growing
        return jnp.append(growing, (state.growing > 0) & ~jnp.any(growing))

    def is_terminal(self, state: Partition) -> Bool[Array, ""]:
        return jnp.all(state.layer >= 0)

    def observe(self, state: Partition) -> Float[Array, " features"]:
        """Which vertices are left, in the last layer and in the growing one, and the logarithms of
        local sums."""
        left, sums = state.layer < 0, self.seen(state)[0]
        logs = [sums.meeting, _log_rest(sums.within)]
        shown = [jnp.where(left, jnp.maximum(x, -_LEAST) / _LEAST, 0.0) for x in logs]
        layers = [left, state.layer == state.growing - 1, state.layer == state.growing]
        return jnp.concatenate([*(x.astype(float) for x in layers), *shown])

    def head_start(self, state: Partition) -> Float[Array, " actions"]:
        r"""Logits: the log-odds of parents that are placed now against parents that are not yet,
        $\log B_j(U, L) - \log (A_j - A_j(U))$, and 0 for closing.

        Of parents that are not placed some may get $j$ as theirs instead, so that both logarithms
        are at least -20. Parents in the growing layer $C$ cannot: the odds against waiting for
        them, $\log B_j(U, L) - \log B_j(U \cup C, C)$, have no such limit.
        """
        sums, later = self.seen(state)
        left, growing = state.layer < 0, state.layer == state.growing
        odds = jnp.maximum(sums.meeting, -_LEAST) - jnp.maximum(_log_rest(sums.within), -_LEAST)
        waits = left & jnp.any(growing) & (sums.meeting > -jnp.inf) & (later.meeting > -jnp.inf)
        against = jnp.where(waits, sums.meeting, 0.0) - jnp.where(waits, later.meeting, 0.0)
        odds = jnp.where(waits, jnp.minimum(odds, against), odds)
        return jnp.append(jnp.where(left, odds, 0.0), 0.0)

    def seen(self, state: Partition) -> tuple[Sums, Sums]:
        """Sums of every vertex that is left, in the growing layer and in the next, with others as
        beside all candidates."""
        placed, growing = state.layer >= 0, state.layer == state.growing
        last = placed & (state.layer == state.growing - 1)
        before = placed & ~growing
        # The same sets for every child, so that what they add up to is a matrix product.
        parts = jnp.stack([before & ~last, last, growing], axis=1).astype(jnp.float32)
        columns = jnp.asarray(self.bits, jnp.float32) @ jnp.cumsum(parts, axis=1)  # below 2^24
        others = jnp.asarray(self.ratios) @ parts
        child, table = jnp.arange(self.size)[:, None], jnp.asarray(self.log_sums[:, :, 0])
        logs = table[child, columns.astype(int)].astype(float)

        def sums(k: int, before: Bool[Array, " d"], meets: Bool[Array, " d"]) -> Sums:
            """Where the k-th part is the layer before, and the parts so far all that is."""
            some, met = 1 + jnp.sum(others[:, :k], axis=1), others[:, k]
            without, now = logs[:, k - 1], logs[:, k]
            by = jnp.where(now[:, :1] > -jnp.inf, now - without, 0.0)
            share = met - some * jnp.expm1(-jnp.sum(by, axis=1))
            share = jnp.where(jnp.any(before), share, 1.0)  # a source has no parents to meet
            top = jnp.sum(now, axis=1)
            within = top + jnp.log(some + met)
            meeting = jnp.where(share > 0, top + jnp.log(share), within - _FLOOR)
            possible = self._possible(before[None], meets[None])
            return Sums(jnp.where(possible, meeting, -jnp.inf), within)

        return sums(1, before, last), sums(2, placed, growing)

    def log_reward(self, state: Partition) -> Float[Array, ""]:
        return self.log_partial(state)

    def log_partial(self, state: Partition) -> Float[Array, ""]:
        return jnp.sum(jnp.where(state.layer < 0, 0.0, self.sums(state).meeting))

    def sums(self, state: Partition) -> Sums:
        """Of each vertex in its layer, or in the growing one if it has none."""
        before, last = self.predecessors(state)
        return self.local(before, last)

    def predecessors(self, state: Partition) -> tuple[Bool[Array, "d d"], Bool[Array, "d d"]]:
        """The vertices (columns) in layers before that of each child, and in the one before."""
        layer, placed = state.layer, state.layer >= 0
        own = jnp.where(placed, layer, state.growing)[:, None]
        return placed & (layer < own), placed & (layer == own - 1)

    def local(self, before: Bool[Array, "d d"], last: Bool[Array, "d d"]) -> Sums:
        """The local sums of every child (row), given its predecessors; sources have none."""
        table, bits = jnp.asarray(self.log_sums), jnp.asarray(self.bits)
        child, others = jnp.arange(self.size), jnp.asarray(self.others)
        column = jnp.sum(jnp.where(before, bits, 0), axis=1)
        apart = jnp.sum(jnp.where(before & ~last, bits, 0), axis=1)
        now, without = (table[child, x].astype(float) for x in (column, apart))
        own = jnp.ones((self.size, 1), bool)
        there = jnp.concatenate([own, jnp.take_along_axis(before, others, axis=1)], axis=1)
        meets = jnp.concatenate([~own, jnp.take_along_axis(last, others, axis=1)], axis=1)
        log_now = jnp.where(there, jnp.sum(now, axis=-1), -jnp.inf)
        possible = there & (now[..., 0] > -jnp.inf)
        apart_by = jnp.sum(jnp.where(possible[..., None], now - without, 0.0), axis=-1)
        share = jnp.where(meets, 1.0, -jnp.expm1(-apart_by))
        # A source has no layer before its own, and no parents.
        source = ~jnp.any(before, axis=1)
        share = jnp.where(source[:, None], there, share)
        top = jnp.max(log_now, axis=1)
        top = jnp.where(top > -jnp.inf, top, 0.0)
        scaled = jnp.where(possible, jnp.exp(log_now - top[:, None]), 0.0)
        within = jnp.log(jnp.sum(scaled, axis=1)) + top
        total = jnp.sum(scaled * jnp.maximum(share, 0.0), axis=1)
        meeting = jnp.where(total > 0, jnp.log(total) + top, within - _FLOOR)
        return Sums(jnp.where(self._possible(before, last), meeting, -jnp.inf), within)


def _log_rest(within: Float[Array, " d"]) -> Float[Array, " d"]:
    r"""$\log (A_j - A_j(U))$ from $\log A_j(U)$, relative to $A_j$."""
    return jnp.log(-jnp.expm1(jnp.minimum(within, -1e-7)))


def _log_sums(log_weights: Float[np.ndarray, "d slots sets"]) -> Float[np.ndarray, "d slots sets"]:
    r"""$\log A_{js}(T)$ for every set $T$ of candidates."""
    table = log_weights.copy()
    size, slots, sets = table.shape
    for stride in (2**i for i in range(sets.bit_length() - 1)):
        pairs = table.reshape(size, slots, -1, 2, stride)
        np.logaddexp(pairs[..., 0, :], pairs[..., 1, :], out=pairs[..., 1, :])
    return table


def _constraints(
    log_weights: Float[np.ndarray, "d slots sets"],
    candidates: Int[np.ndarray, "d K"],
    others: Int[np.ndarray, "d others"],
) -> tuple[Bool[np.ndarray, "d d"], Bool[np.ndarray, "d d"]]:
    """The edges that every graph has, and those that can be added to them."""
    size, number = candidates.shape
    required, joins = np.zeros((2, size, size), bool)
    sets, place = np.arange(2**number), np.arange(number)
    for child, allowed in enumerate(log_weights > -np.inf):
        needed = int(np.bitwise_and.reduce(sets[allowed[0]]))
        if not allowed[0, needed]:
            raise ValueError(f"vertex {child} must be allowed the parents that all its sets share")
        fewer = [allowed[:, sets & ~(1 << k)] for k in place if not needed >> k & 1]
        if not all(np.all(still | ~allowed) for still in (*fewer, allowed[:1])):
            raise ValueError(
                f"vertex {child}: a set of parents must still be allowed without any of those "
                "that are not required"
            )
        required[candidates[child], child] = needed >> place & 1 == 1
        joins[candidates[child], child] = allowed[0, needed | 1 << place]
        joins[others[child], child] = allowed[1:, needed]
    return required, joins
