r"""A limit that $\rho_\lambda$ cannot exceed, from the weights of all states and the rows of a few.

Exact and sampled Fisher have the same rows, $(e_a - \pi)^\top J(s)$ for each state and action.
Exactly their weights are $e = d(s)\, \pi(a \mid s)$; in a surrogate they are
$o = \widetilde d(s)\, \pi(a \mid s)$, or the frequency of the action where scores are sampled: for
$\sum_a n_a (e_a - \pi)(e_a - \pi)^\top$ only $\mathrm{Diag}(n)$ differs from
$C = \sum_a \pi_a (e_a - \pi)(e_a - \pi)^\top$. With the ratio $r = o / e$,
$$\min r \cdot F \preceq \widetilde F \preceq \max r \cdot F,$$
so $\rho_\lambda \le \max(\max r - 1,\ 1 - \min r)$, which costs no product at all.

For some states $T$ the rows can be had. Let $r$ be the largest ratio among the others. Then
$$\frac{x^\top (\widetilde F + \lambda) x}{x^\top (F + \lambda) x}
  \le \frac{x^\top (\widetilde F_T + \lambda) x + r\, x^\top F_{T^c} x}
           {x^\top (F_T + \lambda) x + x^\top F_{T^c} x}
  \le \max\big(\lambda_{\max}(\widetilde F_T + \lambda,\ F_T + \lambda),\ r\big),$$
a dense problem of as many rows. It starts the search for the lower limit, too: with its extreme
vectors, and with $(F_T + \lambda)^{-1} \succeq F_\lambda^{-1}$ for a preconditioner.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from ..fisher import Fisher, Occupancy, Scalar
from ..policies import AbstractPolicy, masked_softmax
from .inverses import Inverse
from .operators import Root
from .pencil import Pencil


class Ceiling(NamedTuple):
    r"""What few states say about a pencil."""

    value: Float[Array, ""]
    r"""$\rho_\lambda$ is not larger."""
    start: Float[Array, "2 p"]
    """Nearly the vectors of the largest and of the smallest eigenvalue."""
    inverse: Inverse
    effective_rank: Float[Array, ""]
    """Of these states alone: that of all is not smaller."""


def shared_rows(fisher: Fisher, visited: Occupancy) -> Pencil:
    """The exact Fisher of all states, and a surrogate that visits some of them."""
    line = fisher.linearise()
    pi, (flat, unravel) = line.probs, ravel_pytree(_parameters(fisher.policy))

    def push(x):
        u = line.push(unravel(x))
        return (u - jnp.sum(pi * u, axis=1, keepdims=True)).ravel()

    def pull(y):
        y = y.reshape(pi.shape)
        return ravel_pytree(line.pull(y - pi * jnp.sum(y, axis=1, keepdims=True)))[0]

    # Padding sits in terminal states, which have no row: those visits drop out.
    if visited.actions is None:
        seen = jnp.zeros_like(line.weights).at[visited.states].add(visited.weights, mode="drop")
        other = seen[:, None] * pi
    else:
        place = visited.states, visited.actions
        other = jnp.zeros_like(pi).at[place].add(visited.weights, mode="drop")
    exact = line.weights[:, None] * pi
    return Pencil(Root(push, pull, flat.size), exact.ravel(), other.ravel())


def ceiling(fisher: Fisher, pencil: Pencil, damping: Scalar, states: int) -> Ceiling:
    """Look at the rows of so many states: half those of largest ratio, half the most likely."""
    shape = len(fisher.occupancy.weights), -1
    exact, other = pencil.exact.reshape(shape), pencil.other.reshape(shape)
    # An action that is not allowed has no weight in either.
    ratio = jnp.where(other > 0, other / exact, jnp.where(exact > 0, 0.0, 1.0))
    chosen = _chosen(jnp.max(ratio, axis=1), jnp.sum(exact, axis=1), min(states, len(ratio)))

    # Weights at most one, so that rows with a large ratio do not get lost in rounding.
    weights = jnp.maximum(exact, other)[chosen].ravel()
    rows = jnp.sqrt(weights)[:, None] * _rows(fisher, chosen)
    safe = jnp.where(weights > 0, weights, 1.0)
    kept, change = exact[chosen].ravel() / safe, (other - exact)[chosen].ravel() / safe

    # In an orthonormal basis V of the rows, which is their transpose times `turn`.
    values, vectors = jnp.linalg.eigh(rows @ rows.T)
    tiny = jnp.finfo(values.dtype).eps * values[-1]
    half = vectors * jnp.sqrt(jnp.maximum(values, 0.0))
    turn = vectors * jnp.where(values > tiny, 1 / jnp.sqrt(jnp.maximum(values, tiny)), 0.0)
    below = (half.T * kept) @ half
    factor = jnp.linalg.cholesky(below + damping * jnp.eye(len(below), dtype=below.dtype))
    form = jsl.solve_triangular(factor, (half.T * change) @ half, lower=True)
    form = jsl.solve_triangular(factor, form.T, lower=True)
    found, vectors = jnp.linalg.eigh((form + form.T) / 2)
    ends = jsl.solve_triangular(factor.T, vectors[:, jnp.array([-1, 0])], lower=False)

    def solve(x):
        inside = turn.T @ (rows @ x)
        rest = inside - damping * jsl.cho_solve((factor, True), inside)
        return (x - rows.T @ (turn @ rest)) / damping

    outside = jnp.max(ratio.at[chosen].set(0.0)) - 1
    # Where rounding spoils the small problem, the limit from the ratios alone remains.
    high = jnp.fmin(jnp.maximum(found[-1], outside), jnp.max(ratio) - 1)
    value = jnp.maximum(jnp.maximum(high, 1 - jnp.min(ratio)), 0.0)
    rank = jnp.trace(jsl.cho_solve((factor, True), below))
    return Ceiling(value, (turn @ ends).T @ rows, Inverse(solve, solve), rank)


def _chosen(
    ratio: Float[Array, " states"], weights: Float[Array, " states"], num: int
) -> Int[Array, " num"]:
    _, first = jax.lax.top_k(ratio, (num + 1) // 2)
    _, second = jax.lax.top_k(weights.at[first].set(-1.0), num // 2)
    return jnp.concatenate([first, second])


def _rows(fisher: Fisher, states: Int[Array, " n"]) -> Float[Array, "rows p"]:
    r"""$(e_a - \pi)^\top J(s)$ of each action in some states."""
    flat, unravel = ravel_pytree(_parameters(fisher.policy))

    def logits(x, state):
        return eqx.combine(unravel(x), fisher.policy)(state)

    slopes = jax.vmap(jax.jacrev(logits), (None, 0))(flat, states)
    mask = jax.vmap(fisher.env.forward_mask)(states)
    pi = masked_softmax(jax.vmap(fisher.policy)(states), mask)[..., None]
    return (slopes - jnp.sum(pi * slopes, axis=1, keepdims=True)).reshape(-1, flat.size)


def _parameters(policy: AbstractPolicy):
    return eqx.filter(policy, eqx.is_inexact_array)
