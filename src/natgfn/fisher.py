r"""The trajectory Fisher as a linear operator.

Every regime of the paper is one operator (`eq:shared_exact_fisher_main`),
$$F = \sum_k w_k\, J(s_k)^\top C_k\, J(s_k),$$
with $J(s)$ the Jacobian of the logits. The occupancy chooses the states and weights; $C_k$ is
the covariance of the score, $\mathrm{Diag}(\pi) - \pi\pi^\top$ (`eq:prelim_cat_block`), or, when
the occupancy carries actions, its one-sample estimate $(e_a - \pi)(e_a - \pi)^\top$
(`eq:sampled_fisher_training`).
"""

from typing import NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from .envs.base import AbstractEnv, State
from .policies import AbstractPolicy, Tabular, forward_probs, masked_log_softmax, masked_softmax
from .statespace import StateSpace

Scalar: TypeAlias = Float[Array, ""] | float


class Occupancy(eqx.Module):
    """Where the policy goes: states and expected visits, or estimates of them.

    Attributes:
        states: states along a leading axis; a state may occur more than once.
        weights: expected visits, zero for padding.
        actions: the actions taken there, for the outer product of scores; without them
            the covariance is exact in the action.
        complete: whether the states are all those of a `StateSpace`, in order.
    """

    states: State
    weights: Float[Array, " n"]
    actions: Int[Array, " n"] | None = None
    complete: bool = eqx.field(static=True, default=False)


class Blocks(NamedTuple):
    """State blocks of the Fisher of a table, for some states, perhaps repeated."""

    states: Int[Array, " n"]
    weights: Float[Array, " n"]
    """Expected visits of the state, the same each time it is repeated."""
    probs: Float[Array, "n actions"]
    mass: Float[Array, "n actions"] | None
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
        """The blocks that are not zero; a `Tabular` policy has no others than diagonal ones
        (`cor:exact_tabular_fisher_main`)."""
        if not (isinstance(self.policy, Tabular) and isinstance(self.env, StateSpace)):
            raise ValueError(
                f"a {type(self.policy).__name__} policy shares parameters between states, so its "
                "Fisher is not block diagonal; use the Dense solver"
            )
        space, table, occupancy = self.env, self.policy.logits, self.occupancy
        states, weights, mass = occupancy.states, occupancy.weights, None
        if occupancy.actions is not None:
            mass = jnp.zeros_like(table).at[states, occupancy.actions].add(weights, mode="drop")
            weights = jnp.sum(mass, axis=1)
        elif not occupancy.complete:
            # Padding sits in terminal states, which have no row: those visits drop out.
            weights = jnp.zeros(len(table), table.dtype).at[states].add(weights, mode="drop")
        rows = jnp.arange(len(table))
        if occupancy.complete or len(table) <= len(states):
            return Blocks(rows, weights, forward_probs(space, self.policy), mass)
        probs = masked_softmax(jax.vmap(self.policy)(states), jax.vmap(space.forward_mask)(states))
        weights, mass = jax.tree.map(lambda x: x.at[states].get(mode="clip"), (weights, mass))
        return Blocks(states, weights, probs, mass)

    def as_matrix(self) -> Float[Array, "p p"]:
        zero, unravel = ravel_pytree(eqx.filter(self.policy, eqx.is_inexact_array))
        columns = jax.vmap(lambda v: ravel_pytree(self.mv(unravel(v)))[0])
        return columns(jnp.eye(zero.size, dtype=zero.dtype))

    def damped(self, damping: Scalar) -> lx.AbstractLinearOperator:
        r"""$F + \lambda I$ for lineax, tagged positive here and only here: sums lose the tag."""
        params = eqx.filter(self.policy, eqx.is_inexact_array)

        def mv(vector):
            return jax.tree.map(lambda fv, v: fv + damping * v, self.mv(vector), vector)

        structure = jax.eval_shape(lambda: params)
        return lx.FunctionLinearOperator(mv, structure, lx.positive_semidefinite_tag)
