"""What an occupancy provider is."""

from abc import abstractmethod
from typing import Any, TypeGuard

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..envs import AbstractEnv
from ..fisher import Occupancy
from ..objectives import Batch
from ..policies import AbstractPolicy
from ..statespace import StateSpace


class AbstractOccupancy(eqx.Module):
    """A route to the states and weights of the trajectory Fisher: a Fisher mode of Algorithm 1."""

    @abstractmethod
    def __call__(self, env: AbstractEnv, policy: AbstractPolicy, batch: Any) -> Occupancy:
        """Where the forward policy `policy` goes, as far as the gradient of `batch` needs it: a
        `Batch`, or `Expected` where no trajectories are drawn."""


def smaller(batch: Batch | None, space: StateSpace) -> TypeGuard[Batch]:
    """Whether there is a batch, with fewer visits than there are states."""
    return batch is not None and batch.paths.actions.size < space.num_inner


def at_visits(space: StateSpace, batch: Batch, weights: Float[Array, " visits"]) -> Occupancy:
    """The states of a batch, each visit with its share of the weight of the state."""
    states, live = batch.paths.before.ravel(), batch.paths.live.ravel()
    # No more than there are trajectories: small numbers, as there may be many states.
    kind = jnp.int16 if batch.size < 2**15 else jnp.int32
    visits = jnp.zeros(space.num_inner, kind).at[states].add(live.astype(kind), mode="drop")
    return Occupancy(states, jnp.where(live, weights / visits.at[states].get(mode="clip"), 0.0))
