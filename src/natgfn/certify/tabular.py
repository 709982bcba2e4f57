r"""Certificates of tables, where every Fisher is a direct sum of small blocks.

With covariance blocks exact and surrogate Fisher commute: in each state they are multiples
$d$ and $\widetilde d$ of one $C(\pi)$, so
$$\rho_\lambda = \max_s \frac{|\widetilde d(s) - d(s)|\, c(s)}{d(s)\, c(s) + \lambda},
  \qquad c(s) = \lambda_{\max}(C(\pi_s)),$$
which costs no more than a few passes over the table.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..fisher import Blocks, Fisher, Scalar
from ..policies import Tabular
from ..solvers import solve_covariance, solve_scores
from .inverses import Metric
from .operators import Root
from .surrogate import relative_error as dense_relative_error


def blocks_of(fisher: Fisher) -> Blocks:
    """The blocks of every state of a table, each once."""
    blocks, table = fisher.blocks(), fisher.policy
    assert isinstance(table, Tabular)
    if fisher.occupancy.complete:
        return blocks

    def spread(x):
        whole = jnp.zeros((len(table.logits), *x.shape[1:]), x.dtype)
        return whole.at[blocks.states].set(x, mode="drop")

    weights, probs, mass = jax.tree.map(spread, (blocks.weights, blocks.probs, blocks.mass))
    return Blocks(jnp.arange(len(weights)), weights, probs, mass)


def metric(blocks: Blocks, damping: Scalar) -> Metric:
    """Everything about blocks that a certificate asks for, on flat tables."""
    shape, weights, p = blocks.probs.shape, blocks.weights[:, None], blocks.probs
    solve = solve_covariance if blocks.mass is None else solve_scores

    def centred(x):
        return x - jnp.sum(p * x, axis=1, keepdims=True)

    # A row for each state and action: the root of its expected visits, times e_a - p.
    scale = jnp.sqrt(weights * p if blocks.mass is None else blocks.mass)

    def transpose(y):
        u = scale * y.reshape(shape)
        return (u - p * jnp.sum(u, axis=1, keepdims=True)).ravel()

    root = Root(lambda x: (scale * centred(x.reshape(shape))).ravel(), transpose, p.size)
    return Metric(root, lambda x: solve(blocks, x.reshape(shape), damping).ravel())


def relative_error(exact: Blocks, other: Blocks, damping: Scalar) -> Float[Array, ""]:
    r"""$\rho_\lambda$ of a table; with the two exchanged it is $\gamma_{B,\lambda}$."""
    if exact.mass is None and other.mass is None:
        top = largest_eigenvalue(exact.probs)
        change = jnp.abs(other.weights - exact.weights) * top
        return jnp.max(change / (exact.weights * top + damping))
    # In small batches: one of thousands of factorisations can lock up XLA's few threads.
    return jnp.max(
        jax.lax.map(
            lambda pair: dense_relative_error(pair[0], pair[1], damping),
            (matrices(exact), matrices(other)),
            batch_size=64,
        )
    )


def matrices(blocks: Blocks) -> Float[Array, "states actions actions"]:
    """Each block written out."""
    p = blocks.probs
    outer = p[:, :, None] * p[:, None]
    if blocks.mass is None:
        return blocks.weights[:, None, None] * (jax.vmap(jnp.diag)(p) - outer)
    # The sum over actions of mass times the outer product of e_a - p.
    cross = blocks.mass[:, :, None] * p[:, None]
    spread = jax.vmap(jnp.diag)(blocks.mass) - cross - cross.transpose(0, 2, 1)
    return spread + blocks.weights[:, None, None] * outer


def largest_eigenvalue(probs: Float[Array, "states actions"]) -> Float[Array, " states"]:
    r"""$\lambda_{\max}(\mathrm{Diag}(p) - p p^\top)$, by bisection of the secular equation.

    It is the root of $\sum_a p_a^2 / (p_a - \mu) = 1$ between the two largest probabilities;
    a loop over the table, where a batch of eigenvalue problems would take a hundred times longer.
    """
    columns = probs.T
    top = jnp.max(columns, axis=0)
    first = jnp.argmax(columns, axis=0)
    others = jnp.where(jnp.arange(len(columns))[:, None] == first, -jnp.inf, columns)
    second = jnp.maximum(jnp.max(others, axis=0), 0.0)

    def halve(_, ends):
        low, high = ends
        middle = (low + high) / 2
        gaps = columns - middle
        gaps = jnp.where(gaps == 0, jnp.finfo(probs.dtype).tiny, gaps)
        above = jnp.sum(columns**2 / gaps, axis=0) > 1
        # The sum grows with mu between the poles: above 1, the root is to the left.
        return jnp.where(above, low, middle), jnp.where(above, middle, high)

    steps = jnp.finfo(probs.dtype).nmant + 2
    low, high = jax.lax.fori_loop(0, steps, halve, (second, top))
    return (low + high) / 2


def effective_rank(blocks: Blocks, damping: Scalar) -> Float[Array, ""]:
    r"""$\mathrm{tr}\, F (F + \lambda I)^{-1}$, of covariance blocks by Sherman-Morrison."""
    d, p = blocks.weights[:, None], blocks.probs
    diagonal = d * p + damping
    # (D - d p p')^-1 = D^-1 + d D^-1 p p' D^-1 / (1 - d p' D^-1 p), and 1 = sum of p.
    rest = jnp.sum(damping * p / diagonal, axis=1)
    share = jnp.sum(p**2 / diagonal**2, axis=1) * blocks.weights / jnp.where(rest > 0, rest, 1.0)
    trace = jnp.sum(1 / diagonal, axis=1) + jnp.where(rest > 0, share, 0.0)
    return jnp.sum(p.shape[1] - damping * trace)
