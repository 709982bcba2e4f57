"""Policies that are given, not learned: most often $P_B$."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..envs import AbstractEnv, State
from ..statespace import log_path_counts, require_space
from .base import AbstractDesign, AbstractPolicy


class UniformPolicy(AbstractPolicy):
    """The same logit for each action."""

    num_actions: int

    def __call__(self, state: State) -> Float[Array, " actions"]:
        return jnp.zeros(self.num_actions)


class Uniform(AbstractDesign):
    """The same probability for each valid action."""

    def __call__(
        self, env: AbstractEnv, *, key: PRNGKeyArray | None = None, outputs: int | None = None
    ) -> UniformPolicy:
        return UniformPolicy(outputs or env.num_actions)

    def backward(self, env: AbstractEnv, *, key: PRNGKeyArray | None = None) -> UniformPolicy:
        return self(env)


class ConstantPolicy(AbstractPolicy):
    """$1 / A$ for each of the $A$ actions, valid or not."""

    num_actions: int

    def __call__(self, state: State) -> Float[Array, " actions"]:
        return jnp.zeros(self.num_actions)

    def log_probs(
        self, logits: Float[Array, "*batch actions"], mask: Bool[Array, "*batch actions"]
    ) -> Float[Array, "*batch actions"]:
        return jnp.where(mask, -jnp.log(self.num_actions), -jnp.inf)


class Constant(AbstractDesign):
    r"""$1 / A$ for each of the $A$ actions, valid or not: what careless code does.

    Where some parents are missing this does not sum to one over the trajectories into an object,
    $h(x) = \sum_\tau P_B(\tau \mid x) < 1$, and trajectory balance has its optimum at
    $R(x)\, h(x)$ instead of $R(x)$ (`statespace.backward_mass` computes $h$). It is here to show
    that.
    """

    def __call__(
        self, env: AbstractEnv, *, key: PRNGKeyArray | None = None, outputs: int | None = None
    ) -> ConstantPolicy:
        return ConstantPolicy(outputs or env.num_actions)

    def backward(self, env: AbstractEnv, *, key: PRNGKeyArray | None = None) -> ConstantPolicy:
        return self(env)


class PathCountPolicy(AbstractPolicy):
    """Logits from a table that is not trained.

    Attributes:
        log_counts: the logarithm of the number of paths to each parent of each state.
    """

    log_counts: Float[Array, "states actions"]

    def __call__(self, state: Int[Array, ""]) -> Float[Array, " actions"]:
        return jax.lax.stop_gradient(self.log_counts)[state]


class PathCount(AbstractDesign):
    """The same probability for each trajectory into an object: parents by their path counts.

    Of all backward policies this makes the forward policy's trajectory law the most random. It
    needs every state.
    """

    def __call__(
        self, env: AbstractEnv, *, key: PRNGKeyArray | None = None, outputs: int | None = None
    ) -> PathCountPolicy:
        raise ValueError("PathCount is a backward policy: use Table or Network forwards")

    def backward(self, env: AbstractEnv, *, key: PRNGKeyArray | None = None) -> PathCountPolicy:
        space = require_space(env, "policies.PathCount", "policies.Uniform")
        parent = jnp.asarray(space.parent)
        return PathCountPolicy(jnp.where(parent >= 0, log_path_counts(space)[parent], 0.0))
