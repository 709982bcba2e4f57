r"""$\rho_\lambda$ and $\gamma_{B,\lambda}$ of operators, without forming a matrix.

Both are the largest $|\theta|$ with $(\widetilde F - F)\, x = \theta\, (F + \lambda I)\, x$. The
extreme pairs are found by generalised Davidson iteration: Rayleigh-Ritz on a growing subspace,
which is extended by preconditioned residuals, so that no inner system is solved. The
preconditioner is a Nystrom approximation of $F$ from a random sketch (Frangella, Tropp and
Udell, 2023).

Two facts make the result a certificate. A Ritz value is a Rayleigh quotient, so the largest
never exceeds the true one; quadratic forms come from the roots $F = R^\top R$ and keep their
digits. And a Nystrom approximation never exceeds $F$, so $r^\top (F_{nys} + \lambda I)^{-1} r$
bounds the squared residual in the norm of $(F + \lambda I)^{-1}$: an eigenvalue is that near.

Where the rows of a root are too many to be kept, as those of thousands of trajectories,
`visits_product` and `Products` do the same with products alone, at the price of some digits.

Outside a compiled function all of this runs step by step (`loops`), around products that are
compiled once.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..fisher import Scalar
from .inverses import Inverse
from .loops import repeat
from .operators import Root


class Pencil(NamedTuple):
    r"""$F = R^\top \mathrm{Diag}(e) R$ and $\widetilde F = R^\top \mathrm{Diag}(o) R$: two weights
    for the same rows, so that one pass serves both."""

    rows: Root
    """$R$."""
    exact: Float[Array, " n"]
    other: Float[Array, " n"]

    @property
    def fisher(self) -> Root:
        return _weighted(self.rows, self.exact)

    @property
    def surrogate(self) -> Root:
        return _weighted(self.rows, self.other)

    @classmethod
    def of(cls, fisher: Root, surrogate: Root) -> "Pencil":
        """Of any two operators: the rows of the one, and of the other."""
        x = jnp.zeros(fisher.size)
        n, more = (jax.eval_shape(root.forward, x) for root in (fisher, surrogate))
        rows = Root(
            lambda x: jnp.concatenate([fisher.forward(x), surrogate.forward(x)]),
            lambda y: fisher.transpose(y[: n.size]) + surrogate.transpose(y[n.size :]),
            fisher.size,
        )
        first = jnp.arange(n.size + more.size) < n.size
        return cls(rows, first.astype(n.dtype), (~first).astype(n.dtype))

    @property
    def size(self) -> int:
        """$p$."""
        return self.rows.size

    def image(self, x: Float[Array, " p"]) -> Float[Array, " n"]:
        """What is kept of a vector: $R x$."""
        return self.rows.forward(x)

    def forms(
        self, basis: Float[Array, "k p"], images: Float[Array, "k n"], damping: Scalar
    ) -> tuple[Float[Array, "k k"], Float[Array, "k k"]]:
        r"""$F_\lambda$ and $\widetilde F - F$ on the span of some vectors."""
        exact = images * jnp.sqrt(self.exact)
        metric = exact @ exact.T + damping * basis @ basis.T
        return metric, (images * (self.other - self.exact)) @ images.T

    def residuals(
        self,
        theta: Float[Array, "k 1"],
        x: Float[Array, "k p"],
        images: Float[Array, "k n"],
        damping: Scalar,
    ) -> Float[Array, "k p"]:
        r"""$(\widetilde F - F)\, x - \theta F_\lambda\, x$."""
        change = self.other - self.exact
        pulled = jax.lax.map(self.rows.transpose, (change - theta * self.exact) * images)
        return pulled - damping * theta * x


class Products(NamedTuple):
    r"""A pencil by products alone: of a vector, $F x$ and $\widetilde F x$ are kept.

    Rounding is that of $x^\top (F x)$. It does not matter for vectors that were preconditioned:
    these have little of the largest eigenvectors in them.
    """

    both: Callable[[Float[Array, " p"]], tuple[Float[Array, " p"], Float[Array, " p"]]]
    r"""$x \mapsto (F x, \widetilde F x)$, which may have work in common."""
    size: int
    """$p$."""

    def image(self, x: Float[Array, " p"]) -> Float[Array, " n"]:
        r"""$F x$ and $(\widetilde F - F)\, x$, one after the other."""
        exact, other = self.both(x)
        return jnp.concatenate([exact, other - exact])

    def forms(
        self, basis: Float[Array, "k p"], images: Float[Array, "k n"], damping: Scalar
    ) -> tuple[Float[Array, "k k"], Float[Array, "k k"]]:
        r"""$F_\lambda$ and $\widetilde F - F$ on the span of some vectors."""
        exact, change = (basis @ part.T for part in jnp.split(images, 2, axis=1))
        return (exact + exact.T) / 2 + damping * basis @ basis.T, (change + change.T) / 2

    def residuals(
        self,
        theta: Float[Array, "k 1"],
        x: Float[Array, "k p"],
        images: Float[Array, "k n"],
        damping: Scalar,
    ) -> Float[Array, "k p"]:
        r"""$(\widetilde F - F)\, x - \theta F_\lambda\, x$."""
        exact, change = jnp.split(images, 2, axis=1)
        return change - theta * (exact + damping * x)


def _weighted(rows: Root, weights: Float[Array, " n"]) -> Root:
    scale = jnp.sqrt(weights)
    return Root(lambda x: scale * rows.forward(x), lambda y: rows.transpose(scale * y), rows.size)


class Estimate(NamedTuple):
    """An extreme eigenvalue in absolute value, and how sure it is."""

    value: Float[Array, ""]
    """A Rayleigh quotient: the true value is not smaller."""
    error: Float[Array, ""]
    """How far above `value` the eigenvalue that was found can be; infinite without convergence,
    when there may be any number of larger ones."""
    high: Float[Array, ""]
    """The largest eigenvalue."""
    low: Float[Array, ""]
    """The smallest, which is never below -1."""
    iterations: Int[Array, ""]


def relative_error_estimate(
    fisher: Root,
    surrogate: Root,
    damping: Scalar,
    inverse: Inverse,
    *,
    key: PRNGKeyArray,
    iterations: int = 64,
    tolerance: float = 3e-3,
) -> Estimate:
    r"""$\rho_\lambda = \|F_\lambda^{-1/2} (\widetilde F - F) F_\lambda^{-1/2}\|_{op}$.

    Args:
        fisher: $F$; exact, or from many more trajectories than the surrogate.
        surrogate: $\widetilde F$. With the two exchanged the result is $\gamma_{B,\lambda}$.
        damping: $\lambda$.
        inverse: of $F_\lambda$, nearly: `nystrom(fisher, rank, key).inverse(damping)`, or a solver.
        key: of the starting vectors.
        iterations: the most; each takes two products of each operator.
        tolerance: stop when the error is below this share of the value.
    """
    rows = jax.eval_shape(surrogate.forward, jnp.zeros(surrogate.size))
    # Where the surrogate is too large it has samples; where it is too small, anything may be.
    high_key, low_key = jax.random.split(key)
    high = surrogate.transpose(jax.random.normal(high_key, (rows.size,), rows.dtype))
    low = jax.random.normal(low_key, (fisher.size,), rows.dtype)
    start = jax.vmap(inverse.near)(jnp.stack([high, low]))
    pencil = Pencil.of(fisher, surrogate)
    return extreme_pairs(pencil, damping, inverse, start, iterations, tolerance=tolerance)


def extreme_pairs(
    pencil: Pencil | Products,
    damping: Scalar,
    inverse: Inverse,
    start: Float[Array, "2 p"],
    iterations: int,
    *,
    both: bool = True,
    tolerance: float = 3e-3,
) -> Estimate:
    """The largest and the smallest eigenvalue, by generalised Davidson iteration from `start`.

    Without `both` only the largest is improved, at half the cost: the other is at least -1.
    """
    width, kept = 2 if both else 1, jax.eval_shape(pencil.image, start[0])

    def extend(space, new, place):
        """Put vectors, made orthogonal to the others and of unit norm, into the space."""
        basis, images = space
        for _ in range(2):
            new = new - (new @ basis.T) @ basis
        for i, whole in enumerate(new):
            # The second must be orthogonal to the first, too.
            rest = whole - (basis @ whole) @ basis
            left = jnp.linalg.norm(rest)
            # What is lost in rounding is no new direction.
            is_new = left > 1e-6 * jnp.linalg.norm(whole)
            x = jnp.where(is_new, rest / jnp.where(is_new, left, 1), 0.0)
            basis = _put(basis, x, place + i)
            images = _put(images, pencil.image(x), place + i)
        return basis, images

    def ritz(space):
        """The highest and the lowest Ritz value, and the coefficients of their vectors."""
        basis, images = space
        metric, form = pencil.forms(basis, images, damping)
        # Rows not filled yet are zero; a unit diagonal keeps them out of the way.
        empty = jnp.diag(metric) <= 0
        metric = metric + jnp.diag(jnp.where(empty, 1.0, 0.0))
        scale = 1 / jnp.sqrt(jnp.diag(metric))
        factor = jnp.linalg.cholesky(scale[:, None] * metric * scale)
        half = jsl.solve_triangular(factor, form * scale[:, None] * scale, lower=True)
        half = jsl.solve_triangular(factor, half.T, lower=True)
        values, vectors = jnp.linalg.eigh((half + half.T) / 2)
        picked = vectors[:, jnp.array([-1, 0])]
        weights = scale[:, None] * jsl.solve_triangular(factor.T, picked, lower=False)
        return values[jnp.array([-1, 0])], weights.T

    def look(space):
        values, weights = ritz(space)
        x, images = (weights[:width] @ part for part in space)
        residual = pencil.residuals(values[:width, None], x, images, damping)
        away = jnp.sum(residual * jax.vmap(inverse.above)(residual), axis=1)
        # Not the sharper bound by the gap to the next value: a larger one may not be seen yet.
        errors = jnp.append(jnp.sqrt(jnp.maximum(away, 0.0)), 1 + values[width:])
        return values, errors, jax.vmap(inverse.near)(residual)

    def unfinished(carry):
        _, values, errors, _, done = carry
        # Only what decides the largest absolute value has to converge.
        largest = jnp.max(jnp.abs(values))
        open_ = errors > tolerance * largest
        matters = jnp.abs(values) + errors > largest
        return (done < iterations) & jnp.any(open_ & matters)

    def iterate(carry):
        space, _, _, new, done = carry
        space = extend(space, new, 2 + width * done)
        values, errors, new = look(space)
        return space, values, errors, new, done + 1

    sizes = (pencil.size, kept.size)
    empty = tuple(jnp.zeros((2 + width * iterations, n), kept.dtype) for n in sizes)
    space = extend(empty, start, 0)
    _, values, errors, _, done = repeat(unfinished, iterate, (space, *look(space), jnp.array(0)))
    value = jnp.max(jnp.abs(values))
    error = jnp.max(jnp.abs(values) + errors) - value
    converged = ~unfinished((None, values, errors, None, -1))
    # Where rounding has spoilt the small problem, nothing is known.
    known = jnp.isfinite(value)
    return Estimate(
        jnp.where(known, value, 0.0),
        jnp.where(known & converged, error, jnp.inf),
        values[0],
        values[1],
        done,
    )


@partial(jax.jit, donate_argnums=0)
def _put(rows: Float[Array, "k n"], row: Float[Array, " n"], place: Int[Array, ""] | int):
    """A row into its place, without a copy of the others."""
    return rows.at[place].set(row)
