"""What a policy is: a map from a state to one logit an action."""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..envs.base import State


class AbstractPolicy(eqx.Module):
    """Unnormalised log-probabilities of the actions, before masking.

    The same type serves forward policies, whose mask is `env.forward_mask`, and backward
    ones, whose mask is `env.backward_mask`. Its inexact arrays are what training changes.
    """

    @abstractmethod
    def __call__(self, state: State) -> Float[Array, " actions"]:
        """The logits in one state."""


class Flow(eqx.Module):
    """All that trajectory balance trains."""

    forward: AbstractPolicy
    backward: AbstractPolicy
    log_z: Float[Array, ""]


def masked_log_softmax(
    logits: Float[Array, "*batch actions"], mask: Bool[Array, "*batch actions"]
) -> Float[Array, "*batch actions"]:
    """Normalised over valid actions, minus infinity elsewhere; gradients are always finite."""
    # A finite stand-in for minus infinity keeps rows without a valid action free of NaN.
    finite = jnp.where(mask, logits, -1e30)
    return jnp.where(mask, jax.nn.log_softmax(finite, axis=-1), -jnp.inf)
