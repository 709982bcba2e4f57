"""Actions chosen in two levels: first a group, then a member of it."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..statespace import StateSpace
from .base import AbstractPolicy, masked_log_softmax


class Hierarchical(AbstractPolicy):
    r"""$\pi(c, b \mid s) = \pi^{(1)}(c \mid s)\, \pi^{(2)}(b \mid c, s)$.

    The Fisher between the two levels vanishes (`app:conditional_fisher_factorization`), so it is
    block diagonal where they have parameters of their own, as with a table; with a network
    they share a trunk, and it is not.

    Attributes:
        levels: logits of the groups, then of the actions.
        groups: the group of each action.
        valid: the forward mask of each state.
    """

    levels: AbstractPolicy
    groups: Int[np.ndarray, " actions"]
    valid: Bool[np.ndarray, "inner actions"]

    def __call__(self, state: Int[Array, ""]) -> Float[Array, " actions"]:
        groups = jnp.asarray(self.groups)
        logits = self.levels(state)
        count = logits.size - groups.size
        members = groups == jnp.arange(count)[:, None]
        valid = members & jnp.asarray(self.valid).at[state].get(mode="clip")
        upper = masked_log_softmax(logits[:count], jnp.any(valid, axis=1))
        lower = masked_log_softmax(jnp.broadcast_to(logits[count:], valid.shape), valid)
        both = upper[groups] + lower[groups, jnp.arange(groups.size)]
        # Invalid actions are masked by whoever asked; infinities would spoil their gradients.
        return jnp.where(jnp.any(valid, axis=0), both, 0.0)

    @classmethod
    def of(
        cls, space: StateSpace, levels: AbstractPolicy, groups: tuple[int, ...]
    ) -> "Hierarchical":
        """For the actions of an enumerated environment."""
        return cls(levels, np.array(groups), space.child >= 0)


class Tied(AbstractPolicy):
    """One row of logits for all states in which the same decision is made.

    With the decisions in a fixed order, as in `envs.ParentSets`, the Fisher is the direct sum
    of one block a decision.

    Attributes:
        logits: one row a decision.
        decision: which one is made in each state.
    """

    logits: Float[Array, "decisions actions"]
    decision: Int[np.ndarray, " states"]

    def __call__(self, state: Int[Array, ""]) -> Float[Array, " actions"]:
        return self.logits.at[jnp.asarray(self.decision)[state]].get(mode="clip")

    @classmethod
    def by_level(cls, space: StateSpace) -> "Tied":
        """One decision for each number of steps taken; uniform at first."""
        level = np.asarray(space.level, np.int32)
        return cls(jnp.zeros((space.num_levels - 1, space.num_actions)), level)
