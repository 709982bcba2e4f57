r"""Closed-form solves of state blocks, in $O(|\mathcal A|)$ operations each.

Two different things, kept apart. *Damping* regularises: $(d\, C(\pi) + \lambda I)^{-1} h$ is
close to $h / \lambda$ where a state is hardly visited. The *pseudo-inverse* regularises nothing:
it solves the singular system exactly on the subspace that the Fisher sees, where entries sum
to zero, and grows like $1 / d$ as visits vanish.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..fisher import Blocks, Fisher, Scalar
from .base import AbstractSolver, Parameters, require_positive


class Block(AbstractSolver):
    """Damped state blocks, by Sherman-Morrison."""

    def solve(
        self, fisher: Fisher, h: Parameters, damping: Scalar, state: PyTree = None
    ) -> tuple[Parameters, PyTree]:
        blocks = fisher.blocks()
        solve = solve_covariance if blocks.mass is None else solve_scores
        solved = solve(blocks, h.logits.at[blocks.states].get(mode="clip"), damping)
        # A state that is never visited has F = 0.
        everywhere = (h.logits / damping).at[blocks.states].set(solved, mode="drop")
        return eqx.tree_at(lambda p: p.logits, h, everywhere), state

    def check_damping(self, damping: float) -> None:
        require_positive(damping)


class BlockPseudoinverse(AbstractSolver):
    """Undamped state blocks, by the Moore-Penrose pseudo-inverse; damping must be zero."""

    def solve(
        self, fisher: Fisher, h: Parameters, damping: Scalar, state: PyTree = None
    ) -> tuple[Parameters, PyTree]:
        blocks = fisher.blocks()
        if blocks.mass is not None:
            raise ValueError("BlockPseudoinverse needs blocks exact in the action; use Sampled")
        solved = pseudo_solve(blocks, h.logits.at[blocks.states].get(mode="clip"))
        everywhere = jnp.zeros_like(h.logits).at[blocks.states].set(solved, mode="drop")
        return eqx.tree_at(lambda p: p.logits, h, everywhere), state

    def check_damping(self, damping: float) -> None:
        if damping != 0:
            raise ValueError(f"BlockPseudoinverse takes damping=0, got {damping}; Block is damped")


def solve_covariance(
    blocks: Blocks, h: Float[Array, "states actions"], damping: Scalar
) -> Float[Array, "states actions"]:
    r"""$(d\, C(\pi) + \lambda I)^{-1} h$, a diagonal $D$ less a rank one.

    The denominator $1 - d\, \pi^\top D^{-1} \pi$ is written as $\lambda \sum_a \pi_a / D_a$, which
    it equals and which does not cancel. Where nothing is possible, $\pi = 0$ and so is it.
    """
    d, p = blocks.weights[:, None], blocks.probs
    inverse = 1 / (d * p + damping)
    y, z = h * inverse, p * inverse
    correction = d * jnp.sum(p * y, axis=1, keepdims=True)
    total = jnp.sum(z, axis=1, keepdims=True)
    return y + z * correction / (damping * jnp.where(total > 0, total, 1.0))


def solve_scores(
    blocks: Blocks, h: Float[Array, "states actions"], damping: Scalar
) -> Float[Array, "states actions"]:
    r"""$(\sum_a c_a (e_a - \pi)(e_a - \pi)^\top + \lambda I)^{-1} h$ for visits $c$ of actions.

    The matrix is $D - c\pi^\top - \pi c^\top + |c|\, \pi\pi^\top$, with $D$ the diagonal of
    $c + \lambda$: a diagonal and a rank two, so Woodbury's identity leaves a 2 x 2 system.
    """
    c, p = blocks.mass, blocks.probs
    assert c is not None
    inverse = 1 / (c + damping)
    y = h * inverse

    def total(x):
        return jnp.sum(x * inverse, axis=1, keepdims=True)

    a, b, e = total(c), total(p), total(p * p)
    r, s = total(c * h), total(p * h)
    det = a * e + damping * b * b
    along_c = -(e * r / damping + b * s) / det
    along_p = (a * s - b * r) / det
    return y - (c * along_c + p * along_p) * inverse


def pseudo_solve(
    blocks: Blocks, h: Float[Array, "states actions"]
) -> Float[Array, "states actions"]:
    r"""$(d\, C(\pi))^\dagger h = \tfrac1d P\, \mathrm{Diag}(1/\pi)\, P h$.

    $P$ removes the mean over the support.
    """
    support = blocks.probs > 0
    count = jnp.sum(support, axis=1, keepdims=True)

    def remove_mean(x):
        x = jnp.where(support, x, 0.0)
        return jnp.where(support, x - jnp.sum(x, axis=1, keepdims=True) / count, 0.0)

    d = blocks.weights[:, None]
    scaled = remove_mean(h) / jnp.where(support, blocks.probs, 1.0)
    return jnp.where(d > 0, remove_mean(scaled) / jnp.where(d > 0, d, 1.0), 0.0)
