"""What a policy is: a map from a state to one logit an action."""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..envs import AbstractEnv, State

DEEPEST = 1_000
"""The most layers of a network: each is compiled."""


class AbstractPolicy(eqx.Module):
    """Unnormalised log-probabilities of the actions, before masking.

    The same type serves forward policies, whose mask is `env.forward_mask`, and backward
    ones, whose mask is `env.backward_mask`. Its inexact arrays are what training changes.
    """

    @abstractmethod
    def __call__(self, state: State) -> Float[Array, " actions"]:
        """The logits in one state."""

    def many(
        self, states: State, live: Bool[Array, " n"] | None = None
    ) -> Float[Array, "n actions"]:
        """Those of many states along a leading axis; where not `live`, they may be anything."""
        return jax.vmap(self)(states)

    @property
    def by_visits(self) -> bool:
        """Whether it is worth evaluating on the states that were visited alone, each once
        (`Visits`); not a table, nor a policy that leaves padding out itself."""
        return bool(jax.tree.leaves(eqx.filter(self, eqx.is_inexact_array)))

    def log_probs(
        self, logits: Float[Array, "*batch actions"], mask: Bool[Array, "*batch actions"]
    ) -> Float[Array, "*batch actions"]:
        """Log-probabilities from logits of its own and the valid actions."""
        return masked_log_softmax(logits, mask)


class AbstractDesign(eqx.Module):
    """What a policy looks like, before it has parameters."""

    @abstractmethod
    def __call__(
        self, env: AbstractEnv, *, key: PRNGKeyArray, outputs: int | None = None
    ) -> AbstractPolicy:
        """A forward policy with initial parameters.

        Args:
            env: the environment, enumerated or not.
            key: of the initial parameters.
            outputs: numbers a state; one an action by default.
        """

    def backward(self, env: AbstractEnv, *, key: PRNGKeyArray) -> AbstractPolicy:
        """A backward policy with initial parameters: that of the states, terminal ones too."""
        return self(env, key=key)


class Flow(eqx.Module):
    r"""All that training changes.

    Attributes:
        forward: $P_F$.
        backward: $P_B$.
        log_z: $\log Z = \log F(s_0)$.
        states: $\log F(s)$ of the other states as a policy with one output, for objectives
            that need it.
    """

    forward: AbstractPolicy
    backward: AbstractPolicy
    log_z: Float[Array, ""]
    states: AbstractPolicy | None = None


def masked_log_softmax(
    logits: Float[Array, "*batch actions"], mask: Bool[Array, "*batch actions"]
) -> Float[Array, "*batch actions"]:
    """Normalised over valid actions, minus infinity elsewhere; gradients are always finite."""
    # A finite stand-in for minus infinity keeps rows without a valid action free of NaN.
    finite = jnp.where(mask, logits, -1e30)
    return jnp.where(mask, jax.nn.log_softmax(finite, axis=-1), -jnp.inf)


def masked_softmax(
    logits: Float[Array, "states actions"], mask: Bool[Array, "states actions"]
) -> Float[Array, "states actions"]:
    """Probabilities of the valid actions, zero elsewhere, for long tables.

    With few actions, a loop over the last axis does not vectorise: on the CPU this is ten
    times faster than exponentiating `masked_log_softmax`, because it works on the transpose
    and the barriers keep the compiler from fusing that away.
    """
    by_action = jax.lax.optimization_barrier(jnp.where(mask, logits, -jnp.inf).T)
    # Its derivative cancels; it would be 0 / 0 where logits computed twice are not rounded alike.
    top = jax.lax.stop_gradient(jnp.max(by_action, axis=0))
    exponentials = jnp.exp(by_action - jnp.where(top > -jnp.inf, top, 0.0))
    total = jnp.sum(exponentials, axis=0)
    probs = exponentials / jnp.where(total > 0, total, 1.0)
    return jax.lax.optimization_barrier(probs).T
