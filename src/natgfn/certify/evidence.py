"""What a certificate is: two numbers, and what the paper says about them."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..fisher import Scalar

_TINY = 1e-300


class Bound(NamedTuple):
    """An inequality with numbers put in: `value` is at most `limit`."""

    value: Scalar
    limit: Scalar

    def holds(self, rounding: float = 1e-9) -> Bool[Array, ""]:
        """Whether it is true, up to rounding errors relative to the larger side."""
        return jnp.asarray(self.value <= self.limit + rounding * jnp.abs(self.limit))

    @property
    def slack(self) -> Float[Array, ""]:
        """How far the value stays below the limit, relative to the larger: 0 is equality."""
        size = jnp.maximum(jnp.abs(self.limit), jnp.abs(self.value))
        gap = (self.limit - self.value) / jnp.where(jnp.isfinite(size), size, 1.0)
        return jnp.where(jnp.isfinite(size), gap, 1.0)


class Identity(NamedTuple):
    """An equation with numbers put in: `left` equals `right`, entry by entry.

    `scale` is the size of what was added up to get there, for sides that are zero.
    """

    left: Float[Array, "..."]
    right: Float[Array, "..."]
    scale: Scalar = 0.0

    @property
    def error(self) -> Float[Array, ""]:
        """The largest difference, relative to the largest entry."""
        sizes = jnp.abs(self.left), jnp.abs(self.right), jnp.asarray(self.scale)
        largest = jnp.max(jnp.stack([jnp.max(size) for size in sizes]))
        return jnp.max(jnp.abs(self.left - self.right)) / jnp.maximum(largest, _TINY)

    def holds(self, rounding: float = 1e-9) -> Bool[Array, ""]:
        return self.error <= rounding


Evidence = Bound | Identity
"""What a statement of the paper is checked by."""
