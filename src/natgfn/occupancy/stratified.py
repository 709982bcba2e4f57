"""A fixed number of visited states, some of every depth (`eq:dag_sampled_fisher`)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..envs import AbstractEnv, State
from ..errors import require_whole
from ..fisher import Occupancy
from ..objectives import Batch
from ..policies import AbstractPolicy
from .base import AbstractOccupancy


class Stratified(AbstractOccupancy):
    r"""$M$ visited states, each with weight $1 / M$.

    So the Fisher is a mean over states, not a sum along trajectories: it is smaller by the mean
    length, which rates and dampings have to make up for.

    Attributes:
        count: $M$.
    """

    count: int = 128

    def __check_init__(self):
        require_whole("count", self.count, 1)

    def __call__(self, env: AbstractEnv, policy: AbstractPolicy, batch: Batch) -> Occupancy:
        states, valid = pick(batch, self.count)
        return Occupancy(states, valid / jnp.maximum(jnp.sum(valid), 1))


def pick(batch: Batch, count: int) -> tuple[State, Bool[Array, " count"]]:
    """`count` visits of the batch, drawn without replacement: one of each depth, then any others.

    The first of the `count` are those that a smaller count would give. What is picked depends on
    the residuals in a way that is as good as random, so an update needs no key of its own.
    """
    live = batch.paths.live
    bits = jax.lax.bitcast_convert_type(batch.residuals.astype(jnp.float32), jnp.uint32)
    seed = jnp.sum(bits * (2 * jnp.arange(bits.size, dtype=jnp.uint32) + 1))
    draw = jax.random.uniform(jax.random.fold_in(jax.random.key(0), seed), live.shape)
    draw = jnp.where(live, draw, jnp.inf)
    # The first of each depth go before all others, in random order too.
    first = draw == jnp.min(draw, axis=1, keepdims=True)
    order = jnp.argsort(jnp.where(first & live, draw - 1, draw).ravel())[:count]
    picked = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[order], batch.paths.before)
    return picked, live.ravel()[order]
