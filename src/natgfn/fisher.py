r"""The trajectory Fisher as a linear operator.

Every regime of the paper is one operator (`eq:shared_exact_fisher_main`),
$$F = \sum_k w_k\, J(s_k)^\top C_k\, J(s_k),$$
with $J(s)$ the Jacobian of the logits. The occupancy chooses the states and weights; $C_k$ is
the covariance of the score, $\mathrm{Diag}(\pi) - \pi\pi^\top$ (`eq:prelim_cat_block`), or, when
the occupancy carries actions, its one-sample estimate $(e_a - \pi)(e_a - \pi)^\top$
(`eq:sampled_fisher_training`).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from .envs.base import AbstractEnv, State
from .policies import AbstractPolicy, Tabular, masked_log_softmax


class Occupancy(eqx.Module):
    """Where the policy goes: states and expected visits, or estimates of them.

    Attributes:
        states: states along a leading axis; a state may occur more than once.
        weights: expected visits, zero for padding.
        actions: the actions taken there, for the outer product of scores; without them
            the covariance is exact in the action.
    """

    states: State
    weights: Float[Array, " n"]
    actions: Int[Array, " n"] | None = None


class Blocks(NamedTuple):
    """A state-block-diagonal Fisher: for a table, `F` has one block a state."""

    weights: Float[Array, " states"]
    probs: Float[Array, "states actions"]
    mass: Float[Array, "states actions"] | None
    """Expected visits of each action, when the blocks are outer products of scores."""


class Fisher(eqx.Module):
    """The operator $F$ on the parameters of a policy: matrix-free, positive semidefinite."""

    env: AbstractEnv
    policy: AbstractPolicy
    occupancy: Occupancy

    def mv(self, vector: PyTree[Float[Array, "..."]]) -> PyTree[Float[Array, "..."]]:
        params, static = eqx.partition(self.policy, eqx.is_inexact_array)

        def logits(params):
            return jax.vmap(eqx.combine(params, static))(self.occupancy.states)

        with jax.default_matmul_precision("highest"):
            value, push = jax.linearize(logits, params)
            pull = jax.linear_transpose(push, params)
            return pull(self._covariance(value, push(vector)))[0]

    def _covariance(self, logits: Float[Array, "n actions"], u: Float[Array, "n actions"]):
        mask = jax.vmap(self.env.forward_mask)(self.occupancy.states)
        probs = jnp.exp(masked_log_softmax(logits, mask))
        weights = self.occupancy.weights[:, None]
        if self.occupancy.actions is None:
            return weights * probs * (u - jnp.sum(probs * u, axis=1, keepdims=True))
        score = jax.nn.one_hot(self.occupancy.actions, probs.shape[1], dtype=probs.dtype) - probs
        return weights * score * jnp.sum(score * u, axis=1, keepdims=True)

    def blocks(self) -> Blocks:
        """The diagonal blocks; a `Tabular` policy has no others (`cor:exact_tabular_fisher_main`)."""
        if not isinstance(self.policy, Tabular):
            raise ValueError(
                f"a {type(self.policy).__name__} policy shares parameters between states, so its "
                "Fisher is not block diagonal; use the Dense solver"
            )
        table, occupancy = self.policy.logits, self.occupancy
        rows = jnp.arange(len(table))
        probs = jnp.exp(masked_log_softmax(table, jax.vmap(self.env.forward_mask)(rows)))
        if occupancy.actions is not None:
            visited = (occupancy.states, occupancy.actions)
            mass = jnp.zeros_like(table).at[visited].add(occupancy.weights, mode="drop")
            return Blocks(jnp.sum(mass, axis=1), probs, mass)
        weights = jnp.zeros(len(table), table.dtype)
        weights = weights.at[occupancy.states].add(occupancy.weights, mode="drop")
        return Blocks(weights, probs, None)

    def as_matrix(self) -> Float[Array, "p p"]:
        zero, unravel = ravel_pytree(eqx.filter(self.policy, eqx.is_inexact_array))
        columns = jax.vmap(lambda v: ravel_pytree(self.mv(unravel(v)))[0])
        return columns(jnp.eye(zero.size, dtype=zero.dtype))

    def damped(self, damping: Float[Array, ""] | float) -> lx.AbstractLinearOperator:
        r"""$F + \lambda I$ for lineax, tagged positive here and nowhere else (sums lose the tag)."""
        params = eqx.filter(self.policy, eqx.is_inexact_array)

        def mv(vector):
            return jax.tree.map(lambda fv, v: fv + damping * v, self.mv(vector), vector)

        structure = jax.eval_shape(lambda: params)
        return lx.FunctionLinearOperator(mv, structure, lx.positive_semidefinite_tag)
