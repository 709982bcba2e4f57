"""A diagonal Fisher for multilayer perceptrons, as in AdaFisher."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ..fisher import Fisher, Scalar
from ..policies import matrices, with_matrices
from .base import AbstractSolver, Parameters, require_positive
from .kfac import average, check_decay, moving, signals
from .live import on_live_rows

Diagonals = tuple[tuple[Float[Array, "_"], Float[Array, "_"]], ...]


class DiagonalState(NamedTuple):
    factors: Diagonals
    """Moving averages of the diagonals of $A$ and $G$ of each layer."""
    solves: Int[Array, ""]


class Diagonal(AbstractSolver):
    r"""$M_{ij} / (A_{ii} G_{jj} + \lambda)$: only the diagonals of the factors of `KFAC`.

    Attributes:
        decay: of the moving averages, which start as plain means.
        normalise: whether each diagonal is mapped to $[0, 1]$ first, as AdaFisher does: the
            step then no longer knows how large the Fisher is.
    """

    decay: float = 0.95
    normalise: bool = False

    def __check_init__(self):
        check_decay(self.decay)

    def init(self, params: Parameters) -> DiagonalState:
        layers = matrices(params)
        zeros = tuple((jnp.zeros_like(x[:, 0]), jnp.zeros_like(x[0])) for x in layers)
        return DiagonalState(zeros, jnp.array(0))

    def solve(
        self, fisher: Fisher, h: Parameters, damping: Scalar, state: PyTree = None
    ) -> tuple[Parameters, PyTree]:
        before = self.init(h) if state is None else state
        layers = matrices(h)

        def on(fisher: Fisher) -> Diagonals:
            weights, found = fisher.occupancy.weights, signals(fisher)
            share = weights / jnp.sum(weights)
            return tuple(
                (_squares(x, share, len(m)), jnp.sum(g**2, axis=(0, 1)))
                for (x, g), m in zip(found, layers, strict=True)
            )

        found = on_live_rows(on, fisher)
        if self.normalise:
            found = tuple((_normalise(a), _normalise(g)) for a, g in found)
        factors = average(before.factors, found, moving(self.decay, before.solves))
        solved = [
            m / (jnp.outer(a, g) + damping) for m, (a, g) in zip(layers, factors, strict=True)
        ]
        return with_matrices(h, solved), DiagonalState(factors, before.solves + 1)

    def check_damping(self, damping: float) -> None:
        require_positive(damping)


def _squares(inputs, weights, size) -> Float[Array, " inputs"]:
    if jnp.issubdtype(inputs.dtype, jnp.floating):
        return weights @ inputs**2
    return jnp.zeros(size, weights.dtype).at[inputs].add(weights[:, None])


def _normalise(x: Float[Array, " n"]) -> Float[Array, " n"]:
    low, high = jnp.min(x), jnp.max(x)
    return (x - low) / jnp.where(high > low, high - low, 1)
