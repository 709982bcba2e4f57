"""What an occupancy provider is."""

from abc import abstractmethod

import equinox as eqx
from jaxtyping import Array, Float

from ..envs.base import AbstractEnv
from ..fisher import Occupancy
from ..policies import AbstractPolicy
from ..sampling import Trajectories
from ..statespace import StateSpace


class AbstractOccupancy(eqx.Module):
    """A route to the states and weights of the trajectory Fisher: a Fisher mode of Algorithm 1."""

    @abstractmethod
    def __call__(
        self,
        env: AbstractEnv,
        policy: AbstractPolicy,
        paths: Trajectories,
        omega: Float[Array, " n"],
    ) -> Occupancy:
        r"""Where `policy` goes.

        Args:
            env: the environment.
            policy: the forward policy.
            paths: trajectories drawn from the proposal $\mu$.
            omega: their weights $q_\theta(\tau) / \mu(\tau)$.
        """


def require_space(env: AbstractEnv, what: str) -> StateSpace:
    """`env`, if it has been enumerated."""
    if isinstance(env, StateSpace):
        return env
    raise ValueError(
        f"{what} needs every state; enumerate the environment first "
        "(natgfn.statespace.enumerate_states), or use occupancy.Sampled"
    )
