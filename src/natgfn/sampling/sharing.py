"""A batch that several devices share: each works on its own part, and all know the whole.

Inside `jax.shard_map` over the axis `DEVICES`, arrays are the same on all devices, unless they are
said to be a device's own part. Of $d$ devices, device $k$ has the trajectories $k, k + d, k + 2d$
and so on, and their residuals, also where a trajectory has many. On one device nothing happens.
"""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

DEVICES = "devices"
"""The axis of the mesh."""

T = TypeVar("T")


def devices() -> int:
    """How many share the batch that is being computed."""
    try:
        return jax.lax.axis_size(DEVICES)
    except NameError:  # there is no such axis here
        return 1


def own_index() -> Any:
    """The number $k$ of this device."""
    return jax.lax.axis_index(DEVICES) if devices() > 1 else 0


def require_parts(what: str, num: int, parts: int) -> int:
    """The size of each of `parts` equal parts of `num` things; a ValueError if there are none."""
    if num % parts:
        raise ValueError(
            f"{what} cannot be split evenly over {parts} devices: expected a multiple of {parts}"
        )
    return num // parts


def own_part(all_have: T, axis: int = 0) -> T:
    """This device's own part of arrays that all have, along an axis."""
    if (count := devices()) == 1:
        return all_have

    def cut(x: Array) -> Array:
        each = require_parts(f"{x.shape[axis]} trajectories", x.shape[axis], count)
        apart = x.reshape(*x.shape[:axis], each, count, *x.shape[axis + 1 :])
        return jax.lax.dynamic_index_in_dim(apart, own_index(), axis + 1, keepdims=False)

    return jax.tree.map(cut, all_have)


def joined(parts: T, axis: int = 0) -> T:
    """What all have, from the parts that each has: the opposite of `own_part`."""
    if (count := devices()) == 1:
        return parts

    def join(x: Array) -> Array:
        found = jax.lax.all_gather(x, DEVICES, axis=axis + 1)
        return found.reshape(*x.shape[:axis], count * x.shape[axis], *x.shape[axis + 1 :])

    return jax.tree.map(join, parts)


def summed(parts: T) -> T:
    """The sum over all devices of what each has, in one exchange for all arrays."""
    if devices() == 1:
        return parts
    flat, unravel = ravel_pytree(parts)
    return unravel(jax.lax.psum(flat, DEVICES))


def equal_share(all_have: Array) -> Array:
    """Of numbers that all have, parts of which the sum over all devices is these numbers again."""
    return all_have if devices() == 1 else all_have / devices()


def own_columns(rows: Float[Array, "part width"]) -> Float[Array, "n some"]:
    """Of a matrix of which each device has the rows of its own part, some columns, in all rows.

    Over all devices these are all columns, and zeros.
    """
    if (count := devices()) == 1:
        return rows
    num, width = rows.shape
    some = -(-width // count)
    padded = jnp.pad(rows, ((0, 0), (0, count * some - width)))
    sent = jax.lax.all_to_all(padded.reshape(num, count, some), DEVICES, 1, 1)
    return sent.reshape(num * count, some)
