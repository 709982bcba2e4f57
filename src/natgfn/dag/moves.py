"""Moves of a Markov chain over root partitions, drawn from random words: one of

- a vertex elsewhere: taken out, and put into a layer or between two, all alike, or one or two
  places up or down;
- two vertices in each other's layer, any two alike, or of two neighbouring layers;
- two neighbouring layers as one, or a layer as two, any split of it alike.

All but the last are as likely back as there.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int8, UInt32

WORDS = 8
"""Random words a step; the first is left to whoever accepts it."""

_MOVES = (0.3, 0.6, 0.7, 0.85)  # cumulative: far, near, any two, two neighbours; else layers


def uniform(word: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """A number in (0, 1)."""
    return (word + 0.5) / 2.0**32


def _below(word: UInt32[Array, ""], count: Int[Array, ""] | int) -> Int[Array, ""]:
    """A whole number from 0 to `count` - 1."""
    return jnp.floor(uniform(word) * count).astype(jnp.int32)


def propose(
    layer: Int8[Array, " d"], words: UInt32[Array, " words"]
) -> tuple[Int8[Array, " d"], Float[Array, ""]]:
    """Another partition, and the logarithm of the ratio of the proposals back and there."""
    kind = jnp.sum(uniform(words[1]) >= jnp.array(_MOVES))
    layers, ratio = _split_or_merge(layer, words[2:])
    others = [
        _relocate(layer, words[2], words[3], words[4], near=False),
        _relocate(layer, words[2], words[3], words[4], near=True),
        _swap(layer, words[2], words[3]),
        _swap_neighbours(layer, words[2], words[3], words[4]),
    ]
    proposed = jnp.stack([*(x.astype(jnp.int8) for x in others), layers.astype(jnp.int8)])[kind]
    return proposed, jnp.where(kind < len(_MOVES), 0.0, ratio)


def _relocate(
    layer: Int8[Array, " d"],
    which: UInt32[Array, ""],
    where: UInt32[Array, ""],
    side: UInt32[Array, ""],
    *,
    near: bool,
) -> Int[Array, " d"]:
    """A vertex in another layer, or in one of its own: as likely back as there.

    Without it there are `number` layers, and the places are before, in and after each of them.
    """
    size = layer.size
    moved = jnp.arange(size) == _below(which, size)
    own = jnp.sum(jnp.where(moved, layer, 0)).astype(jnp.int32)
    alone = jnp.sum(layer == own) == 1
    rest = layer - ((layer > own) & alone)
    number = jnp.max(jnp.where(moved, -1, rest)).astype(jnp.int32) + 1
    before = 2 * own + ~alone
    place = _below(where, 2 * number + 1)
    if near:
        distance = 1 + _below(where, 2)
        place = before + jnp.where(side >> 31 == 0, distance, -distance)
        place = jnp.where((place >= 0) & (place <= 2 * number), place, before)
    target, new = place // 2, place % 2 == 0
    return jnp.where(moved, target, rest + ((rest >= target) & new))


def _swap(
    layer: Int8[Array, " d"], one: UInt32[Array, ""], other: UInt32[Array, ""]
) -> Int[Array, " d"]:
    """Two vertices in each other's layer."""
    size = layer.size
    first = _below(one, size)
    second = (first + 1 + _below(other, size - 1)) % size
    return _exchanged(layer, jnp.arange(size) == first, jnp.arange(size) == second)


def _swap_neighbours(
    layer: Int8[Array, " d"],
    where: UInt32[Array, ""],
    one: UInt32[Array, ""],
    other: UInt32[Array, ""],
) -> Int[Array, " d"]:
    """A vertex of a layer and one of the next in each other's; itself where there is one layer."""
    low = _below(where, jnp.maximum(jnp.max(layer).astype(jnp.int32), 1))

    def member(number: Int[Array, ""], word: UInt32[Array, ""]) -> Bool[Array, " d"]:
        inside = layer == number
        rank = jnp.cumsum(inside) - 1
        return inside & (rank == _below(word, jnp.sum(inside)))

    return _exchanged(layer, member(low, one), member(low + 1, other))


def _exchanged(
    layer: Int8[Array, " d"], one: Bool[Array, " d"], other: Bool[Array, " d"]
) -> Int[Array, " d"]:
    """With the layers of two vertices exchanged, if there are two."""
    both = jnp.any(one) & jnp.any(other)
    of_one, of_other = (jnp.sum(jnp.where(x, layer, 0)) for x in (one, other))
    changed = jnp.where(one, of_other, jnp.where(other, of_one, layer))
    return jnp.where(both, changed, layer)


def _split_or_merge(
    layer: Int8[Array, " d"], words: UInt32[Array, " words"]
) -> tuple[Int[Array, " d"], Float[Array, ""]]:
    """Two layers as one, or one as two; itself with a ratio of zero where that cannot be."""
    size, number = layer.size, jnp.max(layer) + 1
    counts = jnp.sum(layer == jnp.arange(size)[:, None], axis=1)
    # Together: the layer `low` and the next.
    low = _below(words[1], jnp.maximum(number - 1, 1))
    merged = layer - (layer > low)
    both = counts[low] + counts[jnp.minimum(low + 1, size - 1)]
    can_split = jnp.sum(counts >= 2) - (counts[low] >= 2) + 1
    can_split -= counts[jnp.minimum(low + 1, size - 1)] >= 2
    log_merge = jnp.log(number - 1.0) - jnp.log(can_split) - both * jnp.log(2.0)
    # Apart: some vertices of a layer of two or more stay, the others follow.
    able = jnp.sum(counts >= 2)
    rank = jnp.cumsum(counts >= 2) - 1
    chosen = jnp.argmax((counts >= 2) & (rank == _below(words[1], jnp.maximum(able, 1))))
    place = jnp.arange(size, dtype=jnp.uint32)
    stays = jnp.where(place < 32, words[2] >> place, words[3] >> (place - 32)) & 1 == 1
    inside = layer == chosen
    apart = layer + ((layer > chosen) | inside & ~stays)
    proper = jnp.any(inside & stays) & jnp.any(inside & ~stays) & (able > 0)
    log_split = jnp.log(able) + counts[chosen] * jnp.log(2.0) - jnp.log(number)
    merge = words[0] >> 31 == 0
    possible = jnp.where(merge, number > 1, proper)
    ratio = jnp.where(merge, log_merge, log_split)
    return (
        jnp.where(possible, jnp.where(merge, merged, apart), layer),
        jnp.where(possible, ratio, -jnp.inf),
    )
