"""The Monte Carlo regime: the states that were visited (`prop:appendix_mc_regime`)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..envs import AbstractEnv, State
from ..fisher import Occupancy
from ..objectives import Batch
from ..policies import AbstractPolicy
from .base import AbstractOccupancy


class Sampled(AbstractOccupancy):
    r"""Visited states, with the covariance exact in the action.

    Every visit weighs $\omega_i / N$: one over the batch on-policy, importance-corrected
    off-policy. Averaging `SampledScores` over the actions gives this, so it has less noise.
    """

    def __call__(self, env: AbstractEnv, policy: AbstractPolicy, batch: Batch) -> Occupancy:
        states, weights = visits(batch)
        return Occupancy(states, weights)


class SampledScores(AbstractOccupancy):
    """Visited states and actions: the outer product of scores of `eq:sampled_fisher_training`."""

    def __call__(self, env: AbstractEnv, policy: AbstractPolicy, batch: Batch) -> Occupancy:
        states, weights = visits(batch)
        return Occupancy(states, weights, batch.paths.actions.ravel())


def visits(batch: Batch) -> tuple[State, Float[Array, " n"]]:
    """Each visited state, and the weight of the visit."""
    weights = jnp.where(batch.paths.live, batch.omega / batch.size, 0.0).ravel()
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch.paths.before), weights
