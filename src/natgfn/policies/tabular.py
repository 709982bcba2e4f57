"""One row of logits for each state of an enumerated environment, or for each context."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..envs import AbstractEnv, State
from ..graphical import Contexts
from ..statespace import StateSpace, require_space
from .base import AbstractDesign, AbstractPolicy, masked_softmax


class Tabular(AbstractPolicy):
    """A free logit for each row and action: `cor:exact_tabular_fisher_main`.

    Attributes:
        logits: of each row.
        contexts: which row belongs to a partial assignment (`envs.Assignments`); None where the
            states are the numbers of an enumerated environment, and of the rows.
    """

    logits: Float[Array, "rows actions"]
    contexts: Contexts | None = eqx.field(static=True, default=None)

    def __call__(self, state: State) -> Float[Array, " actions"]:
        # Terminal states, which pad a trajectory, read the last row; masks discard it.
        return self.logits.at[self.row(state)].get(mode="clip")

    def row(self, state: State) -> Int[Array, ""]:
        """That of a state; beyond the last one for a terminal state."""
        return state if self.contexts is None else self.contexts.row(state.values, state.step)

    def rows(self, states: State) -> Int[Array, "..."]:
        """Those of states along any leading axes."""
        if self.contexts is None:
            return states
        row = self.row
        for _ in range(states.step.ndim):
            row = jax.vmap(row)
        return row(states)

    def in_contexts(self, rows: Int[Array, " n"]) -> Float[Array, "n actions"]:
        """The logits in contexts."""
        return self.logits[rows]

    @property
    def by_visits(self) -> bool:
        return False

    @classmethod
    def forward(cls, space: StateSpace) -> "Tabular":
        """Uniform over the actions of each non-terminal state."""
        return cls(jnp.zeros((space.num_inner, space.num_actions)))

    @classmethod
    def backward(cls, space: StateSpace) -> "Tabular":
        """Uniform over the parents of each state."""
        return cls(jnp.zeros((space.num_states, space.num_actions)))


class Table(AbstractDesign):
    """A row of logits for each state, uniform at first: the paper's tabular experiments."""

    def __call__(
        self, env: AbstractEnv, *, key: PRNGKeyArray, outputs: int | None = None
    ) -> Tabular:
        space = require_space(env, "a table", "policies.Network")
        return Tabular(jnp.zeros((space.num_inner, outputs or space.num_actions)))

    def backward(self, env: AbstractEnv, *, key: PRNGKeyArray | None = None) -> Tabular:
        return Tabular.backward(require_space(env, "a table", "policies.Network"))


def forward_table(space: StateSpace, policy: AbstractPolicy) -> Float[Array, "inner actions"]:
    r"""$\log \pi(a \mid s)$ of any policy, for every non-terminal state."""
    return policy.log_probs(_logits(policy, space.num_inner), jnp.asarray(space.child) >= 0)


def forward_probs(space: StateSpace, policy: AbstractPolicy) -> Float[Array, "inner actions"]:
    r"""$\pi(a \mid s)$ of any policy, for every non-terminal state."""
    return masked_softmax(_logits(policy, space.num_inner), jnp.asarray(space.child) >= 0)


def backward_table(space: StateSpace, policy: AbstractPolicy) -> Float[Array, "states actions"]:
    r"""$\log P_B(a \mid s)$ of any policy, for every state."""
    logits = _logits(policy, space.num_states)
    return policy.log_probs(logits, jnp.asarray(space.parent) >= 0)


def _logits(policy: AbstractPolicy, count: int) -> Float[Array, "count actions"]:
    # Reading a table through every index in turn would be a slow copy of it.
    return policy.logits if isinstance(policy, Tabular) else jax.vmap(policy)(jnp.arange(count))
