"""Backward policies that are given, not learned."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..envs.base import AbstractEnv, State
from ..statespace import StateSpace, log_path_counts
from .base import AbstractPolicy


class Uniform(AbstractPolicy):
    """The same probability for each valid action."""

    num_actions: int

    def __call__(self, state: State) -> Float[Array, " actions"]:
        return jnp.zeros(self.num_actions)

    @classmethod
    def backward(cls, env: AbstractEnv) -> "Uniform":
        return cls(env.num_actions)


class Constant(AbstractPolicy):
    r"""$1 / A$ for each of the $A$ actions, valid or not: what careless code does.

    Where some parents are missing this does not sum to one over the trajectories into an object,
    $h(x) = \sum_\tau P_B(\tau \mid x) < 1$, and trajectory balance has its optimum at
    $R(x)\, h(x)$ instead of $R(x)$ (`statespace.backward_mass` computes $h$). It is here to show
    that.
    """

    num_actions: int

    def __call__(self, state: State) -> Float[Array, " actions"]:
        return jnp.zeros(self.num_actions)

    def log_probs(self, logits, mask):
        return jnp.where(mask, -jnp.log(self.num_actions), -jnp.inf)

    @classmethod
    def backward(cls, env: AbstractEnv) -> "Constant":
        return cls(env.num_actions)


class PathCount(AbstractPolicy):
    """The same probability for each trajectory into an object: parents by their path counts.

    Of all backward policies this makes the forward policy's trajectory law the most random.
    """

    log_counts: Float[Array, "states actions"]

    def __call__(self, state: Int[Array, ""]) -> Float[Array, " actions"]:
        return jax.lax.stop_gradient(self.log_counts)[state]

    @classmethod
    def backward(cls, space: StateSpace) -> "PathCount":
        parent = jnp.asarray(space.parent)
        return cls(jnp.where(parent >= 0, log_path_counts(space)[parent], 0.0))
