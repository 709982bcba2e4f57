"""Work in proportion to the states that were visited, not to the padding."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ..fisher import Fisher, Occupancy

FEW = 64
"""Rows in the smallest program that is compiled: fewer are padded to so many."""


def on_live_rows(compute: Callable[[Fisher], PyTree], fisher: Fisher) -> PyTree:
    """`compute(fisher)`, without the rows of weight zero, for what they do not change.

    The others move to the front of an array that is a 64th, a 16th, a quarter, half or all of
    the rows, whichever is the smallest to hold them; only that program runs. (Not under `vmap`,
    which runs them all.)
    """
    occupancy = fisher.occupancy
    if occupancy.complete:
        return compute(fisher)
    live = occupancy.weights != 0
    rows, count = live.size, jnp.sum(live)
    place = jnp.where(live, jnp.cumsum(live) - 1, rows)
    # By counting: sorting would take ten times longer.
    order = jnp.zeros(rows, int).at[place].set(jnp.arange(rows), mode="drop")

    def on_first(size):
        picked = order[:size]
        weights = jnp.where(jnp.arange(size) < count, occupancy.weights[picked], 0)
        states, actions = jax.tree.map(lambda x: x[picked], (occupancy.states, occupancy.actions))
        return compute(Fisher(fisher.env, fisher.policy, Occupancy(states, weights, actions)))

    sizes = [rows // part for part in (64, 16, 4, 2) if rows // part >= FEW] + [rows]
    branches = [partial(on_first, size) for size in sizes]
    return jax.lax.switch(jnp.searchsorted(jnp.array(sizes), count), branches)
