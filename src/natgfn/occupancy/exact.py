"""The exact regime: occupancies by dynamic programming."""

import jax.numpy as jnp

from ..envs import AbstractEnv
from ..fisher import Occupancy
from ..objectives import Batch
from ..policies import AbstractPolicy, forward_probs
from ..statespace import occupancy, require_space
from .base import AbstractOccupancy, at_visits, smaller


class Exact(AbstractOccupancy):
    r"""$d_\theta(s)$ (`eq:occupancy_main`).

    Where only one path leads to each state, $d_\theta(s)$ is the probability of that path, which
    a trajectory through $s$ has already computed. Then, if the batch is smaller than the
    space, only the visited states are given: the gradient of the batch vanishes in all
    others, so their blocks would be solved for nothing.
    """

    def __call__(
        self, env: AbstractEnv, policy: AbstractPolicy, batch: Batch | None = None
    ) -> Occupancy:
        space = require_space(env, "occupancy.Exact")
        if space.is_tree and smaller(batch, space):
            reach = jnp.exp(jnp.cumsum(batch.probs.steps, axis=0) - batch.probs.steps)
            return at_visits(space, batch, reach.ravel())
        weights, _ = occupancy(space, forward_probs(space, policy))
        return Occupancy(jnp.arange(space.num_inner), weights, complete=True)
