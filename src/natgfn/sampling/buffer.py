"""A buffer of distinct objects, to be built again: inside the compiled loop, in arrays."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

from ..envs import AbstractEnv, State
from .trajectories import invert_cdf


class Buffer(eqx.Module):
    r"""The objects that were visited last, each once, with a priority.

    An object that comes again is the newest again, with its new priority; the oldest makes
    room. Objects are drawn with replacement, in proportion to $1 / (N / 100 + \text{rank})$,
    where rank 0 has the highest priority and the older of two equals comes first (the
    buffer of Kim et al., 2025).

    Attributes:
        objects: terminal states along a leading axis.
        names: of each object, which tell it from all others: `names_of`.
        priorities: of each, 0 in empty places.
        stamps: when each came, counted in objects; 0 in empty places.
    """

    objects: State
    names: UInt32[Array, "capacity 2"]
    priorities: Float[Array, " capacity"]
    stamps: Int[Array, " capacity"]

    @classmethod
    def empty(cls, env: AbstractEnv, capacity: int) -> "Buffer":
        objects = jax.tree.map(
            lambda x: jnp.zeros((capacity, *jnp.shape(x)), jnp.result_type(x)), env.init()
        )
        blank = jnp.zeros(capacity, jnp.int32)
        return cls(objects, jnp.zeros((capacity, 2), jnp.uint32), jnp.zeros(capacity), blank)

    def insert(self, objects: State, priorities: Float[Array, " n"]) -> "Buffer":
        """The buffer after these came, one after the other."""

        def one(buffer: Buffer, new):
            item, name, priority = new
            place = jnp.all(buffer.names == name, axis=1) & (buffer.stamps > 0)
            here = jnp.where(jnp.any(place), jnp.argmax(place), jnp.argmin(buffer.stamps))
            inserted = Buffer(
                jax.tree.map(lambda x, y: x.at[here].set(y), buffer.objects, item),
                buffer.names.at[here].set(name),
                buffer.priorities.at[here].set(priority),
                buffer.stamps.at[here].set(jnp.max(buffer.stamps) + 1),
            )
            return inserted, None

        return jax.lax.scan(one, self, (objects, names_of(objects), priorities))[0]

    @property
    def is_empty(self) -> Bool[Array, ""]:
        return jnp.all(self.stamps == 0)

    def draw(self, num: int, *, key: PRNGKeyArray) -> State:
        """Draw objects, along a leading axis; there must be at least one in the buffer."""
        count = jnp.sum(self.stamps > 0)
        rank = jnp.arange(self.stamps.size)
        weights = jnp.where(rank < count, 1 / (0.01 * count + rank), 0.0)
        ranks = invert_cdf(weights, jax.random.uniform(key, (num,)))
        order = jnp.lexsort((self.stamps, -self.priorities, self.stamps == 0))
        return jax.tree.map(lambda x: x[order[ranks]], self.objects)


def names_of(states: State) -> UInt32[Array, "n 2"]:
    """64 bits that tell each state from others: its number, or a hash of all its numbers.

    Two different states have the same hash with probability 2^-64: among the 10^7 objects of a long
    run, some pair with probability 10^-5, and then one of the two is taken for the other.
    """
    leaves = [jnp.asarray(x) for x in jax.tree.leaves(states)]
    count = len(leaves[0])
    if len(leaves) == 1 and leaves[0].ndim == 1:  # of an enumerated environment
        number = leaves[0].astype(jnp.uint32)
        return jnp.stack([number, jnp.zeros_like(number)], axis=1)
    columns = [x.reshape(count, -1).astype(jnp.uint32) for x in leaves]
    numbers = jnp.concatenate(columns, axis=1)
    place = jnp.arange(1, numbers.shape[1] + 1, dtype=jnp.uint32)

    def hashed(seed: int) -> UInt32[Array, " n"]:
        # Each number mixed with its place; the sum of the results, mixed again.
        salt = mix(place * jnp.uint32(0x9E3779B9) + jnp.uint32(seed))
        return mix(jnp.sum(mix(numbers ^ salt) * (salt | 1), axis=1, dtype=jnp.uint32))

    return jnp.stack([hashed(0x243F6A88), hashed(0x85A308D3)], axis=1)


def mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A bijection of 32-bit numbers in which every input bit moves every output bit.

    The constants are those of "lowbias32" (Wellons, 2018).
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
