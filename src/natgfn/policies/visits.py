"""A network on the states of a batch: on each distinct one once, on padding never."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_derivatives import linear_call
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..envs import AbstractEnv, State
from ..statespace import StateSpace
from .base import AbstractPolicy

LARGE = 256
"""Rows of states that a network evaluates together."""

SMALL = 64
"""Rows of the last part, where no more are left."""


class Visits(eqx.Module):
    """The rows that a policy is evaluated on, and which of them each state of a batch is.

    Attributes:
        states: a state for each row; what comes after the first `count` rows is not evaluated.
        count: how many rows there are; a number in Python if that is all of them, few enough to
            keep their activations.
        place: the row of each state of the batch; any number where it is padding.
        logits: of the rows, where they have been computed already. Derivatives ignore them.
    """

    states: State
    count: Int[Array, ""] | int
    place: Int[Array, " n"]
    logits: Float[Array, "rows outputs"] | None = None

    @classmethod
    def of(cls, env: AbstractEnv, states: State, live: Bool[Array, " n"]) -> "Visits":
        """Those of states along a leading axis: the distinct ones where they have numbers, and
        else all that are `live`."""
        first, place = live, jnp.arange(live.size)
        if isinstance(env, StateSpace):
            place = (
                jnp.zeros(env.num_states, int)
                .at[jnp.where(live, states, env.num_states)]
                .set(place, mode="drop")[states]
            )
            first = live & (place == jnp.arange(live.size))
        rank = jnp.cumsum(first) - 1
        rows = live.size + LARGE
        order = (
            jnp.zeros(rows, int)
            .at[jnp.where(first, rank, rows)]
            .set(jnp.arange(live.size), mode="drop")
        )
        rows_of = jax.tree.map(lambda x: x[order], states)
        return cls(rows_of, rank[-1] + 1, jnp.where(live, rank[place], 0))


def outputs(policy: AbstractPolicy, visits: Visits) -> Float[Array, "n outputs"]:
    """The logits in each state of a batch.

    Work is in proportion to `visits.count`, a value, for derivatives too: products with the
    Jacobian and its transpose go through the rows chunk by chunk, and keep no activations.
    (Derivatives have no rule for `vmap` over tangents.)
    """
    if isinstance(visits.count, int):
        return policy.many(visits.states)[visits.place]
    return _of_rows(policy, visits)[visits.place]


@eqx.filter_custom_jvp
def _of_rows(policy: AbstractPolicy, visits: Visits) -> Float[Array, "rows outputs"]:
    if visits.logits is not None:
        return visits.logits
    return collect(visits.states, visits.count, policy.many)


@_of_rows.def_jvp
def _of_rows_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    policy, visits = primals
    params, static = eqx.partition(policy, eqx.is_inexact_array)
    still = jax.tree.map(jnp.zeros_like, params)
    change = eqx.combine(eqx.filter(tangents[0], eqx.is_inexact_array), still)

    def on(part: State) -> Callable[[PyTree], Float[Array, "size outputs"]]:
        return lambda params: eqx.combine(params, static).many(part)

    def push(known, change):
        params, visits = known
        return collect(
            visits.states, visits.count, lambda part: jax.jvp(on(part), (params,), (change,))[1]
        )

    def pull(known, slopes):
        params, visits = known

        def add(total, part, start):
            states, some = part  # the slopes of rows that nobody asked for are zero
            (more,) = jax.vjp(on(states), params)[1](some)
            return jax.tree.map(jnp.add, total, more)

        rows = (visits.states, slopes)
        return fold(rows, visits.count, add, jax.tree.map(jnp.zeros_like, params))

    values = _of_rows(policy, visits)
    return values, linear_call(push, pull, (params, visits), change)


def collect(
    rows: PyTree, count: Int[Array, ""] | int, compute: Callable[[PyTree], PyTree]
) -> PyTree:
    """What `compute` says of each of the first `count` rows, in arrays as long as `rows`."""
    length = _length(rows)
    shapes = jax.eval_shape(compute, jax.tree.map(lambda x: x[:1], rows))
    blank = jax.tree.map(lambda x: jnp.zeros((length, *x.shape[1:]), x.dtype), shapes)

    def put(found, part, start):
        return jax.tree.map(
            lambda all, some: jax.lax.dynamic_update_slice_in_dim(all, some, start, axis=0),
            found,
            compute(part),
        )

    return fold(rows, count, put, blank)


def fold(
    rows: PyTree, count: Int[Array, ""] | int, body: Callable[..., PyTree], carry: PyTree
) -> PyTree:
    """`body(carry, part, start)` over parts of the first `count` rows: large ones, then a small.

    The last part may go beyond `count`: there must be `LARGE` rows more.
    """
    length = _length(rows)
    large, small = min(LARGE, length), min(SMALL, length)

    def parts(size, done):
        def step(k, carry):
            start = done + k * size
            part = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size), rows)
            return body(carry, part, start)

        return step

    many = (jnp.maximum(count - small, 0) + large - 1) // large
    carry = jax.lax.fori_loop(0, many, parts(large, 0), carry)
    left = count > many * large
    return jax.lax.fori_loop(0, left.astype(int), parts(small, many * large), carry)


def _length(rows: PyTree) -> int:
    return jax.tree.leaves(rows)[0].shape[0]
