"""The exact regime: occupancies by dynamic programming."""

import jax.numpy as jnp

from ..fisher import Occupancy
from ..objectives import Batch
from ..policies import forward_probs
from ..statespace import StateSpace, occupancy, require_space
from .base import AbstractOccupancy


class Exact(AbstractOccupancy):
    r"""$d_\theta(s)$ (`eq:occupancy_main`).

    Where only one path leads to each state, $d_\theta(s)$ is the probability of that path, which
    a trajectory through $s$ has already computed. Then, if the batch is smaller than the
    space, only the visited states are given: the gradient of the batch vanishes in all
    others, so their blocks would be solved for nothing.
    """

    def __call__(self, env, policy, batch=None):
        space = require_space(env, "occupancy.Exact")
        if batch is not None and space.is_tree and batch.paths.actions.size < space.num_inner:
            return _along_paths(space, batch)
        weights, _ = occupancy(space, forward_probs(space, policy))
        return Occupancy(jnp.arange(space.num_inner), weights, complete=True)


def _along_paths(space: StateSpace, batch: Batch) -> Occupancy:
    """The probability of reaching each visited state, shared between its visits."""
    states, live = batch.paths.before, batch.paths.live
    reach = jnp.exp(jnp.cumsum(batch.probs.steps, axis=0) - batch.probs.steps)
    visits = jnp.zeros(space.num_inner, reach.dtype).at[states].add(live, mode="drop")
    weights = jnp.where(live, reach / visits.at[states].get(mode="clip"), 0.0)
    return Occupancy(states.ravel(), weights.ravel())
