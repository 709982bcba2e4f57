"""What an occupancy provider is."""

from abc import abstractmethod

import equinox as eqx

from ..envs.base import AbstractEnv
from ..fisher import Occupancy
from ..objectives import Batch
from ..policies import AbstractPolicy


class AbstractOccupancy(eqx.Module):
    """A route to the states and weights of the trajectory Fisher: a Fisher mode of Algorithm 1."""

    @abstractmethod
    def __call__(self, env: AbstractEnv, policy: AbstractPolicy, batch: Batch) -> Occupancy:
        """Where the forward policy `policy` goes, as far as the gradient of `batch` needs it."""
