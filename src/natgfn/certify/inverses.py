r"""Stand-ins for $(F + \lambda I)^{-1}$: from a sketch, from rows, by conjugate gradients."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jaxtyping import Array, Float, PRNGKeyArray

from ..fisher import Scalar
from .loops import repeat
from .operators import Product, Root

SOLVED = 1e-4
"""The residual of a linear system that counts as solved, relative to its right-hand side."""


class Metric(NamedTuple):
    r"""A Fisher as an operator on flat parameters, and the inverse of it damped."""

    root: Root | Product
    solve: Callable[[Float[Array, " p"]], Float[Array, " p"]]


class Inverse(NamedTuple):
    r"""Two stand-ins for $F_\lambda^{-1}$: `near` to search with, and `above` it in the order of
    positive semidefinite matrices, to bound errors with."""

    near: Callable[[Float[Array, " p"]], Float[Array, " p"]]
    above: Callable[[Float[Array, " p"]], Float[Array, " p"]]


class Nystrom(NamedTuple):
    r"""$F_{nys} = U \mathrm{Diag}(\sigma) U^\top \preceq F$."""

    vectors: Float[Array, "p k"]
    values: Float[Array, " k"]

    def inverse(self, damping: Scalar) -> Inverse:
        """With the smallest value found for all that were not, or with none."""
        return Inverse(
            lambda x: self.solve(x, damping, self.values[-1]),
            lambda x: self.solve(x, damping, 0.0),
        )

    def solve(
        self, x: Float[Array, "... p"], damping: Scalar, tail: Scalar
    ) -> Float[Array, "... p"]:
        r"""$(F_{nys} + t (I - U U^\top) + \lambda I)^{-1} x$ for a `tail` $t$."""
        inside = x @ self.vectors
        scale = 1 / (self.values + damping) - 1 / (tail + damping)
        return x / (tail + damping) + (inside * scale) @ self.vectors.T


def nystrom(root: Root | Product, rank: int, key: PRNGKeyArray) -> Nystrom:
    """Sketch an operator with `rank` products."""
    rank = min(rank, root.size)
    dtype = jax.eval_shape(root.mv, jnp.zeros(root.size)).dtype
    # No orthogonalisation: with its own threads, LAPACK's competes with XLA's for the cores.
    sketch = jax.random.normal(key, (rank, root.size), dtype) / jnp.sqrt(root.size)
    core, product = root.sketched(sketch)
    # A small shift keeps the factorisation safe, and is taken off again.
    shift = (
        jnp.sqrt(jnp.asarray(root.size, dtype)) * jnp.finfo(dtype).eps * jnp.linalg.norm(product)
    )
    values, turn = jnp.linalg.eigh(core + shift * sketch @ sketch.T)
    tiny = jnp.finfo(dtype).eps * values[-1]
    scale = jnp.where(values > tiny, 1 / jnp.sqrt(jnp.maximum(values, tiny)), 0.0)
    half = (turn * scale).T @ (product + shift * sketch)
    # Its singular values by the small Gram matrix: those that get lost are below the shift.
    squares, turn = jnp.linalg.eigh(half @ half.T)
    squares, turn = squares[::-1], turn[:, ::-1]
    vectors = half.T @ turn / jnp.sqrt(jnp.maximum(squares, shift))
    return Nystrom(vectors, jnp.maximum(squares - shift, 0.0))


def rows_inverse(rows: Float[Array, "num p"], damping: Scalar) -> Inverse:
    r"""Of $G^\top G + \lambda I$, to search with; all that is above $F_\lambda^{-1}$ for certain
    is $\lambda^{-1} I$."""
    factor = jsl.cho_factor(rows @ rows.T + damping * jnp.eye(len(rows), dtype=rows.dtype))
    return Inverse(
        lambda x: (x - rows.T @ jsl.cho_solve(factor, rows @ x)) / damping,
        lambda x: x / damping,
    )


def rows_rank(rows: Float[Array, "num p"], damping: Scalar) -> Float[Array, ""]:
    r"""The effective rank of $G^\top G$; that of $\mathrm E\, G^\top G$ is not smaller than its
    mean, as $x / (x + \lambda)$ is concave."""
    values = jnp.maximum(jnp.linalg.eigvalsh(rows @ rows.T), 0.0)
    return jnp.sum(values / (values + damping))


def excess(rows: Float[Array, "num p"], inverse: Inverse) -> Float[Array, "2 p"]:
    r"""The two vectors along which $G^\top G$ is largest beside $F_\lambda$, nearly."""
    solved = jax.vmap(inverse.near)(rows)
    _, vectors = jnp.linalg.eigh(rows @ solved.T)
    return vectors[:, -2:].T[::-1] @ solved


def conjugate_gradients(
    root: Root | Product,
    damping: Scalar,
    iterations: int,
    near: Callable[[Float[Array, " p"]], Float[Array, " p"]] = lambda x: x,
) -> Callable[[Float[Array, " p"]], Float[Array, " p"]]:
    r"""A solver of $F_\lambda x = b$ with so many products at most, preconditioned by `near`."""

    def solve(b):
        enough = SOLVED**2 * (b @ b)

        def unfinished(carry):
            _, r, _, _, done = carry
            return (done < iterations) & (r @ r > enough)

        def step(carry):
            x, r, p, gamma, done = carry
            product = root.mv(p) + damping * p
            alpha = gamma / (p @ product)
            x, r = x + alpha * p, r - alpha * product
            z = near(r)
            after = r @ z
            return x, r, z + after / gamma * p, after, done + 1

        z = near(b)
        return repeat(unfinished, step, (jnp.zeros_like(b), b, z, b @ z, jnp.array(0)))[0]

    return solve
