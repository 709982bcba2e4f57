"""A buffer of distinct objects, to be built again: inside the compiled loop, in arrays."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .rollout import invert_cdf


class Buffer(eqx.Module):
    r"""The objects that were visited last, each once, with a priority.

    An object that comes again is the newest again, with its new priority; the oldest makes
    room. Objects are drawn with replacement, in proportion to $1 / (N / 100 + \text{rank})$,
    where rank 0 has the highest priority and the older of two equals comes first (the
    buffer of Kim et al., 2025).

    Attributes:
        objects: numbers of objects, -1 in empty places.
        priorities: of each, 0 in empty places.
        stamps: when each came, counted in objects; 0 in empty places.
    """

    objects: Int[Array, " capacity"]
    priorities: Float[Array, " capacity"]
    stamps: Int[Array, " capacity"]

    @classmethod
    def empty(cls, capacity: int) -> "Buffer":
        blank = jnp.zeros(capacity, jnp.int32)
        return cls(blank - 1, jnp.zeros(capacity), blank)

    def insert(self, objects: Int[Array, " n"], priorities: Float[Array, " n"]) -> "Buffer":
        """The buffer after these came, one after the other."""

        def one(buffer: Buffer, new):
            item, priority = new
            place = buffer.objects == item
            here = jnp.where(jnp.any(place), jnp.argmax(place), jnp.argmin(buffer.stamps))
            inserted = Buffer(
                buffer.objects.at[here].set(item),
                buffer.priorities.at[here].set(priority),
                buffer.stamps.at[here].set(jnp.max(buffer.stamps) + 1),
            )
            return inserted, None

        return jax.lax.scan(one, self, (objects, priorities))[0]

    @property
    def is_empty(self) -> Bool[Array, ""]:
        return jnp.all(self.stamps == 0)

    def draw(self, num: int, *, key: PRNGKeyArray) -> Int[Array, " n"]:
        """Draw objects; there must be at least one."""
        count = jnp.sum(self.stamps > 0)
        rank = jnp.arange(self.objects.size)
        weights = jnp.where(rank < count, 1 / (0.01 * count + rank), 0.0)
        ranks = invert_cdf(weights, jax.random.uniform(key, (num,)))
        order = jnp.lexsort((self.stamps, -self.priorities, self.stamps == 0))
        return self.objects[order[ranks]]
