r"""The trajectory Fisher as a linear operator.

Every regime of the paper is one operator (`eq:shared_exact_fisher_main`),
$$F = \sum_k w_k\, J(s_k)^\top C_k\, J(s_k),$$
with $J(s)$ the Jacobian of the logits. The occupancy chooses the states and weights; $C_k$ is
the covariance of the score, $\mathrm{Diag}(\pi) - \pi\pi^\top$ (`eq:prelim_cat_block`), or, when
the occupancy carries actions, its one-sample estimate $(e_a - \pi)(e_a - \pi)^\top$
(`eq:sampled_fisher_training`).
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..envs import AbstractEnv, State
from ..policies import (
    AbstractPolicy,
    Tabular,
    context_probs,
    contexts_of,
    forward_probs,
    masked_softmax,
    require_assignments,
)
from ..sampling import devices, own_index
from ..statespace import StateSpace

Scalar: TypeAlias = Float[Array, ""] | float
"""A real number, traced or not: a damping or a rate."""


class Occupancy(eqx.Module):
    """Where the policy goes: states and expected visits, or estimates of them.

    Attributes:
        states: states along a leading axis; a state may occur more than once.
        weights: expected visits, zero for padding.
        actions: the actions taken there, for the outer product of scores; without them
            the covariance is exact in the action.
        complete: whether the states are all those of a `StateSpace`, or all contexts, in order.
        contexts: whether the states are the numbers of contexts of the policy
            (`graphical.Contexts`).
    """

    states: State
    weights: Float[Array, " n"]
    actions: Int[Array, " n"] | None = None
    complete: bool = eqx.field(static=True, default=False)
    contexts: bool = eqx.field(static=True, default=False)


class Blocks(NamedTuple):
    """State blocks of the Fisher of a table, for some states, perhaps repeated."""

    states: Int[Array, " n"]
    weights: Float[Array, " n"]
    """Expected visits of the state, the same each time it is repeated."""
    probs: Float[Array, "n actions"]
    mass: Float[Array, "n actions"] | None
    """Expected visits of each action, when the blocks are outer products of scores."""


class LinearisedFisher(NamedTuple):
    r"""$F = R^\top R$ at a policy that has been evaluated once.

    $R v$ has a row for each state and action, $\sqrt{w \pi_a}\, (u_a - \pi^\top u)$ with $u = J v$
    the change of the logits, or a row for each state, $\sqrt w\, (e_a - \pi)^\top u$, where the
    covariance is that of one sampled action. Quadratic forms as $|R v|^2$ keep their digits in
    float32, where $v^\top (F v)$ loses those below the largest eigenvalue.
    """

    push: Callable[[PyTree], Float[Array, "n actions"]]
    r"""$v \mapsto J v$."""
    pull: Callable[[Float[Array, "n actions"]], PyTree]
    r"""$u \mapsto J^\top u$."""
    weights: Float[Array, " n"]
    probs: Float[Array, "n actions"]
    scores: Float[Array, "n actions"] | None
    r"""$e_a - \pi$ of the sampled actions."""

    def mv(self, vector: PyTree[Float[Array, "..."]]) -> PyTree[Float[Array, "..."]]:
        return self.transpose(self.root(vector))

    def root(self, vector: PyTree[Float[Array, "..."]]) -> Float[Array, "n rows"]:
        """$R v$."""
        with jax.default_matmul_precision("highest"):
            u = self.push(vector)
        if self.scores is not None:
            return jnp.sqrt(self.weights)[:, None] * jnp.sum(self.scores * u, axis=1, keepdims=True)
        u = u - jnp.sum(self.probs * u, axis=1, keepdims=True)
        return jnp.sqrt(self.weights[:, None] * self.probs) * u

    def transpose(self, rows: Float[Array, "n rows"]) -> PyTree[Float[Array, "..."]]:
        r"""$R^\top y$. Of a random $y$ with covariance $I$ the result has covariance $F$."""
        if self.scores is not None:
            u = jnp.sqrt(self.weights)[:, None] * rows * self.scores
        else:
            u = jnp.sqrt(self.weights[:, None] * self.probs) * rows
            u = u - self.probs * jnp.sum(u, axis=1, keepdims=True)
        with jax.default_matmul_precision("highest"):
            return self.pull(u)


class Fisher(eqx.Module):
    """The operator $F$ on the parameters of a policy: matrix-free, positive semidefinite."""

    env: AbstractEnv
    policy: AbstractPolicy
    occupancy: Occupancy

    def mv(self, vector: PyTree[Float[Array, "..."]]) -> PyTree[Float[Array, "..."]]:
        return self.linearise().mv(vector)

    def own_part(self) -> "Fisher":
        """The sum over this device's own states: those of the others have weight zero."""
        if (count := devices()) == 1:
            return self
        states, weights = self.occupancy.states, self.occupancy.weights
        mine = jnp.arange(weights.size) % count == own_index()
        occupancy = Occupancy(
            states,
            jnp.where(mine, weights, 0),
            self.occupancy.actions,
            contexts=self.occupancy.contexts,
        )
        return Fisher(self.env, self.policy, occupancy)

    def linearise(self) -> "LinearisedFisher":
        """The same operator with the policy evaluated once, for many products."""
        params, static = eqx.partition(self.policy, eqx.is_inexact_array)
        states, actions = self.occupancy.states, self.occupancy.actions

        def logits(params):
            policy = eqx.combine(params, static)
            if self.occupancy.contexts:
                return policy.in_contexts(states)
            return policy.many(states, self.occupancy.weights != 0)

        with jax.default_matmul_precision("highest"):
            value, push = jax.linearize(logits, params)
            pull = jax.linear_transpose(push, params)
        probs = masked_softmax(value, self._mask())
        scores = None
        if actions is not None:
            scores = jax.nn.one_hot(actions, probs.shape[1], dtype=probs.dtype) - probs
        return LinearisedFisher(push, lambda u: pull(u)[0], self.occupancy.weights, probs, scores)

    def blocks(self) -> Blocks:
        """The blocks that are not zero; a `Tabular` policy has no others than diagonal ones
        (`cor:exact_tabular_fisher_main`)."""
        if not isinstance(self.policy, Tabular):
            raise ValueError(
                f"a {type(self.policy).__name__} policy shares parameters between states, so its "
                "Fisher is not block diagonal; use the Dense solver"
            )
        table, occupancy = self.policy.logits, self.occupancy
        weights, mass = occupancy.weights, None
        rows = occupancy.states if occupancy.contexts else self.policy.rows(occupancy.states)
        if occupancy.actions is not None:
            mass = jnp.zeros_like(table).at[rows, occupancy.actions].add(weights, mode="drop")
            weights = jnp.sum(mass, axis=1)
        elif not occupancy.complete:
            # Padding sits in terminal states, which have no row: those visits drop out.
            weights = jnp.zeros(len(table), table.dtype).at[rows].add(weights, mode="drop")
        if occupancy.complete or (len(table) <= len(rows) and self.policy.contexts is None):
            everything = jnp.arange(len(table))
            return Blocks(everything, weights, self._probs_of_rows(), mass)
        probs = masked_softmax(self.policy.logits.at[rows].get(mode="clip"), self._mask())
        weights, mass = jax.tree.map(lambda x: x.at[rows].get(mode="clip"), (weights, mass))
        return Blocks(rows, weights, probs, mass)

    def _mask(self) -> Bool[Array, "n actions"]:
        """The actions that are possible in the states."""
        states = self.occupancy.states
        if not self.occupancy.contexts:
            return jax.vmap(self.env.forward_mask)(states)
        env = require_assignments(self.env, "a Fisher over contexts")
        return env.mask(contexts_of(self.policy))[states]

    def _probs_of_rows(self) -> Float[Array, "rows actions"]:
        """Of a table, all."""
        if isinstance(self.env, StateSpace):
            return forward_probs(self.env, self.policy)
        assert isinstance(self.policy, Tabular)
        return context_probs(require_assignments(self.env, "a table of contexts"), self.policy)

    def as_matrix(self) -> Float[Array, "p p"]:
        zero, unravel = ravel_pytree(eqx.filter(self.policy, eqx.is_inexact_array))
        mv = self.linearise().mv
        # In batches: all columns at once would need the logits of all states for each.
        return jax.lax.map(
            lambda v: ravel_pytree(mv(unravel(v)))[0],
            jnp.eye(zero.size, dtype=zero.dtype),
            batch_size=64,
        )
