"""The exact regime: occupancies by dynamic programming."""

import jax.numpy as jnp

from ..fisher import Occupancy
from ..policies import forward_table
from ..statespace import occupancy
from .base import AbstractOccupancy, require_space


class Exact(AbstractOccupancy):
    r"""$d_\theta(s)$ for every state (`eq:occupancy_main`)."""

    def __call__(self, env, policy, paths, omega):
        space = require_space(env, "occupancy.Exact")
        weights, _ = occupancy(space, forward_table(space, policy))
        return Occupancy(jnp.arange(space.num_inner), weights)
