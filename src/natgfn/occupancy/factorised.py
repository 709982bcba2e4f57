"""The structured regime on grids: a product of coordinate marginals at each time."""

import math

import jax
import jax.numpy as jnp

from ..envs.base import OnGrid
from ..fisher import Occupancy
from ..policies import forward_probs
from ..statespace import timed_occupancy
from .base import AbstractOccupancy, require_space


class Factorised(AbstractOccupancy):
    r"""$\widetilde m_t(x, y) = m_{x,t}(x)\, m_{y,t}(y)$ (`app:computational_regimes_detailed`).

    The marginals are those of the exact joint occupancy, so this measures what the
    mean-field assumption costs; it does not save the computation of the joint. Where
    trajectories may stop early, $m_t$ is a sub-probability: it is normalised, factorised,
    and given its mass back.
    """

    def __call__(self, env, policy, batch=None):
        space = require_space(env, "occupancy.Factorised")
        grid = space.env
        if not isinstance(grid, OnGrid):
            raise ValueError(
                f"occupancy.Factorised needs coordinates, and {type(grid).__name__} has none: "
                "give it `sides` and `coordinates(state)` (natgfn.envs.OnGrid)"
            )
        joint = timed_occupancy(space, forward_probs(space, policy))
        mass = jnp.sum(joint, axis=1, keepdims=True)
        inner = jax.tree.map(lambda x: jnp.asarray(x)[: space.num_inner], space.states)
        values = jax.vmap(grid.coordinates)(inner)
        factors = []
        for column, side in zip(values.T, grid.sides, strict=True):
            indicator = jax.nn.one_hot(column, side, dtype=joint.dtype)
            marginal = jnp.matmul(joint, indicator, precision="highest")
            factors.append(marginal[:, column] / jnp.where(mass > 0, mass, 1.0))
        weights = jnp.sum(mass * math.prod(factors[1:], start=factors[0]), axis=0)
        return Occupancy(jnp.arange(space.num_inner), weights, complete=True)
