r"""Kronecker-factored curvature for multilayer perceptrons.

Let $\bar a$ be the input of a layer in a state, with a 1 appended for the bias, and $g_k$ the
columns of a root $B$ of the covariance of the score, $C = B B^\top$, propagated back to the output
of the layer. Then the gradient of the layer's matrix in column $k$ is $\bar a\, g_k^\top$, its
block of the Fisher is $\sum_s d(s) \sum_k (\bar a \bar a^\top) \otimes (g_k g_k^\top)$, and K-FAC
takes the mean of the product for the product of the means: $A \otimes G$ with
$$A = \frac1L \sum_s d(s)\, \bar a \bar a^\top, \qquad
  G = \sum_s d(s) \sum_k g_k g_k^\top, \qquad L = \sum_s d(s),$$
so that the mean length $L$ of trajectories is counted once, in $G$. With one state, or one
input, it is exact. EKFAC keeps the eigenbases of $A$ and $G$, and replaces the products of their
eigenvalues by the diagonal of the Fisher's block in this basis.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ..errors import require_whole
from ..fisher import Fisher, Scalar
from ..policies import (
    MLP,
    Inputs,
    Matrices,
    activations,
    masked_softmax,
    matrices,
    propagate,
    with_matrices,
)
from ..sampling import devices, summed
from .base import AbstractSolver, Parameters, require_positive
from .live import on_live_rows

Square = Float[Array, "_ _"]


class KFACState(NamedTuple):
    """Layer by layer: the moving averages, and what was last computed from them."""

    factors: tuple[tuple[Square, Square], ...]
    """$A$ and $G$."""
    inverses: tuple[tuple[Square, Square], ...]
    """Of the damped factors; for EKFAC, the eigenvectors."""
    scales: Matrices
    """The diagonals in the eigenbases; nothing for K-FAC."""
    solves: Int[Array, ""]


class KFAC(AbstractSolver):
    r"""$(A + \pi \sqrt\lambda I)^{-1} M\, (G + \sqrt\lambda / \pi\, I)^{-1}$ for each layer.

    $M$ is the layer's part of $h$, and $\pi^2$ the ratio of the mean eigenvalues of $A$ and $G$.
    EKFAC adds $\lambda$ to the diagonal in the eigenbasis instead.

    Attributes:
        decay: of the moving averages, which start as plain means.
        refresh: solves from one inversion of the factors to the next.
        eigenvalues: whether to correct them: EKFAC.
    """

    decay: float = 0.95
    refresh: int = 10
    eigenvalues: bool = False

    def __check_init__(self):
        check_decay(self.decay)
        require_whole("refresh", self.refresh, 1)

    def init(self, params: Parameters) -> KFACState:
        layers = matrices(params)
        zeros = tuple(
            (jnp.zeros((m, m), x.dtype), jnp.zeros((n, n), x.dtype))
            for x in layers
            for m, n in [x.shape]
        )
        scales = tuple(map(jnp.zeros_like, layers)) if self.eigenvalues else ()
        return KFACState(zeros, zeros, scales, jnp.array(0))

    def solve(
        self, fisher: Fisher, h: Parameters, damping: Scalar, state: PyTree = None
    ) -> tuple[Parameters, PyTree]:
        before = self.init(h) if state is None else state
        decay = moving(self.decay, before.solves)
        layers = matrices(h)
        with jax.default_matmul_precision("highest"):
            factors = average(before.factors, _factors(fisher, layers), decay)
            due = before.solves % self.refresh == 0
            prepare = _rotate if self.eigenvalues else _invert
            inverses, scales = jax.lax.cond(
                due, lambda: prepare(before, factors, damping), lambda: before[1:3]
            )
            if self.eigenvalues:
                if devices() > 1:
                    raise ValueError(
                        "eigenvectors of equal eigenvalues depend on rounding, in which devices "
                        "differ: give KFAC without eigenvalues to several"
                    )
                new = on_live_rows(lambda f: _diagonals(f, inverses), fisher)
                scales = average(scales, new, decay)
                solved = [
                    a @ (a.T @ m @ g / (scale + damping)) @ g.T
                    for m, (a, g), scale in zip(layers, inverses, scales, strict=True)
                ]
            else:
                solved = [a @ m @ g for m, (a, g) in zip(layers, inverses, strict=True)]
        return with_matrices(h, solved), KFACState(factors, inverses, scales, before.solves + 1)

    def check_damping(self, damping: float) -> None:
        require_positive(damping)


def _factors(fisher: Fisher, layers: Matrices) -> tuple[tuple[Square, Square], ...]:
    """$A$ and $G$, from the states of all devices."""

    def on(fisher: Fisher):
        found, weights = signals(fisher), fisher.occupancy.weights
        return tuple(
            (second_moment(x, weights / jnp.sum(weights), len(m)), jnp.einsum("kni,knj->ij", g, g))
            for (x, g), m in zip(found, layers, strict=True)
        )

    fisher = fisher.own_part()
    own = on_live_rows(on, fisher)
    if devices() == 1:
        return own
    length = jnp.sum(fisher.occupancy.weights)
    share = length / summed(length)
    # A device may have no states.
    return summed(tuple((share * jnp.where(length > 0, a, 0), g) for a, g in own))


def _invert(state: KFACState, factors: tuple[tuple[Square, Square], ...], damping: Scalar):
    def invert(matrix, shift):
        one = jnp.eye(len(matrix), dtype=matrix.dtype)
        return jsl.cho_solve(jsl.cho_factor(matrix + shift * one, lower=True), one)

    def both(a, g):
        mean_a, mean_g = (jnp.maximum(jnp.trace(x) / len(x), 1e-20) for x in (a, g))
        pi, root = jnp.sqrt(mean_a / mean_g), jnp.sqrt(damping)
        return invert(a, pi * root), invert(g, root / pi)

    return tuple(both(*pair) for pair in factors), state.scales


def _rotate(state: KFACState, factors: tuple[tuple[Square, Square], ...], damping: Scalar):
    """New eigenbases, in which the old diagonals have these diagonals."""
    bases = tuple((jnp.linalg.eigh(a)[1], jnp.linalg.eigh(g)[1]) for a, g in factors)
    turned = [
        ((new_a.T @ a) ** 2, (g.T @ new_g) ** 2)
        for (a, g), (new_a, new_g) in zip(state.inverses, bases, strict=True)
    ]
    scales = tuple(a @ s @ g for s, (a, g) in zip(state.scales, turned, strict=True))
    return bases, scales


def _diagonals(fisher: Fisher, bases: tuple[tuple[Square, Square], ...]) -> Matrices:
    r"""$\sum_s d(s) \sum_k (U_A^\top \bar a)^2 ((U_G^\top g_k)^2)^\top$."""
    return tuple(
        (rotate(x, a) ** 2).T @ jnp.sum((g @ basis) ** 2, axis=0)
        for (x, g), (a, basis) in zip(signals(fisher), bases, strict=True)
    )


def signals(fisher: Fisher) -> list[tuple[Inputs, Float[Array, "_ n _"]]]:
    r"""For each layer $\bar a$ and $\sqrt d\, g_k$, in every state."""
    policy, occupancy = fisher.policy, fisher.occupancy
    assert isinstance(policy, MLP)
    inputs, logits = activations(policy, occupancy.states)
    probs = masked_softmax(logits, jax.vmap(fisher.env.forward_mask)(occupancy.states))
    if occupancy.actions is None:
        g = covariance_root(probs)
    else:
        g = (jax.nn.one_hot(occupancy.actions, probs.shape[1], dtype=probs.dtype) - probs)[None]
    columns = propagate(policy, inputs, jnp.sqrt(occupancy.weights)[:, None] * g)
    return list(zip(inputs, columns, strict=True))


def covariance_root(probs: Float[Array, "n actions"]) -> Float[Array, "_ n actions"]:
    r"""The columns of Cholesky's $B B^\top = \mathrm{Diag}(\pi) - \pi \pi^\top$, but the last.

    With $s_k = \sum_{j \ge k} \pi_j$ they are $B_{kk} = \sqrt{\pi_k s_{k+1} / s_k}$ and
    $B_{jk} = -\pi_j \sqrt{\pi_k / (s_k s_{k+1})}$ for $j > k$; the last is zero.
    """
    left = jnp.cumsum(probs[:, ::-1], axis=1)[:, ::-1].T
    p, s, after = probs.T[:-1], left[:-1], left[1:]
    good = (p > 0) & (after > 0)
    size = jnp.where(good, jnp.sqrt(p / jnp.where(good, s, 1) / jnp.where(good, after, 1)), 0)
    j, k = jnp.arange(probs.shape[1]), jnp.arange(len(p))[:, None, None]
    return size[..., None] * jnp.where(j > k, -probs, jnp.where(j == k, after[..., None], 0))


def second_moment(inputs: Inputs, weights: Float[Array, " n"], size: int) -> Square:
    r"""$\sum_s w_s\, \bar a \bar a^\top$; from counts of pairs where the ones are given."""
    if jnp.issubdtype(inputs.dtype, jnp.floating):
        return (weights[:, None] * inputs).T @ inputs
    i, j = np.triu_indices(inputs.shape[1], 1)
    pairs = jnp.zeros((size, size), weights.dtype)
    pairs = pairs.at[inputs[:, i], inputs[:, j]].add(weights[:, None])
    # The last token is in all rows, so its pairs are the counts, and these the diagonal.
    return pairs + pairs.T + jnp.diag(pairs[:, -1].at[-1].set(jnp.sum(weights)))


def rotate(inputs: Inputs, basis: Square) -> Float[Array, "n _"]:
    r"""$\bar a^\top U$."""
    if jnp.issubdtype(inputs.dtype, jnp.floating):
        return inputs @ basis
    return sum((basis[token] for token in inputs.T[1:]), basis[inputs[:, 0]])


# Moving averages.


def check_decay(decay: float) -> None:
    if not 0 <= decay < 1:
        raise ValueError(f"decay must be in [0, 1), got {decay}")


def moving(decay: Scalar, solves: Int[Array, ""]) -> Scalar:
    """The decay of an average that starts as a plain mean."""
    return jnp.minimum(1 - 1 / (solves + 1), decay)


def average(old: PyTree, new: PyTree, decay: Scalar) -> PyTree:
    return jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, old, new)
