r"""When a surrogate Fisher can be trusted: `thm:structure_dependent_approx` and its consequences.

Matrices here are dense; `natgfn.certify.pencil` has the same numbers for operators. Throughout,
$F_\lambda = F + \lambda I$, $v = F_\lambda^{-1} h$ and $\widetilde v = \widetilde F_\lambda^{-1}
\widetilde h$. Limits are infinite where the paper's condition is not met.
"""

import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jaxtyping import Array, Float

from ..fisher import Scalar
from .evidence import Bound

Matrix = Float[Array, "p p"]
Vector = Float[Array, " p"]


def pencil_eigenvalues(fisher: Matrix, surrogate: Matrix, damping: Scalar) -> Vector:
    r"""Eigenvalues of $F_\lambda^{-1/2} (\widetilde F - F) F_\lambda^{-1/2}$, ascending."""
    factor = jnp.linalg.cholesky(_damped(fisher, damping))
    half = jsl.solve_triangular(factor, surrogate - fisher, lower=True)
    return jnp.linalg.eigvalsh(jsl.solve_triangular(factor, half.T, lower=True))


def relative_error(fisher: Matrix, surrogate: Matrix, damping: Scalar) -> Float[Array, ""]:
    r"""$\rho_\lambda = \|F_\lambda^{-1/2} (\widetilde F - F) F_\lambda^{-1/2}\|_{op}$."""
    return jnp.max(jnp.abs(pencil_eigenvalues(fisher, surrogate, damping)))


def coupling(fisher: Matrix, blocks: Matrix, damping: Scalar) -> Float[Array, ""]:
    r"""$\gamma_{B,\lambda}$: the coupling that a block surrogate $B$ leaves out.

    It is $\rho_\lambda$ with the roles of exact and surrogate Fisher exchanged.
    """
    return relative_error(blocks, fisher, damping)


def implied_error(gamma: Scalar) -> Float[Array, ""]:
    r"""$\gamma / (1 - \gamma)$, which $\rho_\lambda$ cannot exceed."""
    return jnp.where(jnp.asarray(gamma) < 1, gamma / jnp.maximum(1 - gamma, 0.0), jnp.inf)


def direction_limit(
    rho: Scalar, direction: Scalar, gradient_error: Scalar = 0.0
) -> Float[Array, ""]:
    r"""The right side of `eq:structured_natdir_bound_main`.

    Args:
        rho: $\rho_\lambda$.
        direction: $\|v\|_{F_\lambda}$.
        gradient_error: $\|\widetilde h - h\|_{F_\lambda^{-1}}$.
    """
    rho = jnp.asarray(rho)
    error = (rho * direction + gradient_error) / jnp.where(rho < 1, 1 - rho, 1.0)
    return jnp.where(rho < 1, error, jnp.inf)


def direction_bound(
    fisher: Matrix, surrogate: Matrix, h: Vector, surrogate_h: Vector, damping: Scalar
) -> Bound:
    r"""$\|\widetilde v - v\|_{F_\lambda}$ against `eq:structured_natdir_bound_main`."""
    exact = _damped(fisher, damping)
    v = _solve(exact, h)
    change = _solve(_damped(surrogate, damping), surrogate_h) - v
    error = surrogate_h - h
    rho = relative_error(fisher, surrogate, damping)
    limit = direction_limit(rho, _norm(exact, v), jnp.sqrt(error @ _solve(exact, error)))
    return Bound(_norm(exact, change), limit)


def pairing_bounds(
    fisher: Matrix, surrogate: Matrix, h: Vector, damping: Scalar
) -> tuple[Bound, Bound]:
    r"""Both sides of the pairing in `thm:structure_dependent_approx`, for $\widetilde h = h$.

    $\frac{1}{1 + \rho}\, h^\top F_\lambda^{-1} h \le h^\top \widetilde F_\lambda^{-1} h
    \le \frac{1}{1 - \rho}\, h^\top F_\lambda^{-1} h$.
    """
    rho = relative_error(fisher, surrogate, damping)
    exact = h @ _solve(_damped(fisher, damping), h)
    pairing = h @ _solve(_damped(surrogate, damping), h)
    upper = jnp.where(rho < 1, exact / jnp.where(rho < 1, 1 - rho, 1.0), jnp.inf)
    return Bound(exact / (1 + rho), pairing), Bound(pairing, upper)


def coupling_bound(fisher: Matrix, blocks: Matrix, x: Vector, damping: Scalar) -> Bound:
    r"""$(1 - \gamma) B_\lambda \preceq F_\lambda \preceq (1 + \gamma) B_\lambda$, along $x$."""
    ratio = x @ _damped(fisher, damping) @ x / (x @ _damped(blocks, damping) @ x)
    return Bound(jnp.abs(ratio - 1), coupling(fisher, blocks, damping))


def implied_error_bound(fisher: Matrix, blocks: Matrix, damping: Scalar) -> Bound:
    r"""$\rho_\lambda \le \gamma_{B,\lambda} / (1 - \gamma_{B,\lambda})$ for $\widetilde F = B$."""
    gamma = coupling(fisher, blocks, damping)
    return Bound(relative_error(fisher, blocks, damping), implied_error(gamma))


def descent_bound(
    fisher: Matrix,
    surrogate: Matrix,
    h: Vector,
    damping: Scalar,
    *,
    curvature: Matrix,
    smoothness: Scalar,
    rate: Scalar,
) -> Bound:
    r"""`cor:surrogate_fisher_descent`: the promised descent, at most what the step achieves.

    The objective is $h^\top s + \frac12 s^\top K s$ with `curvature` $K \preceq L F_\lambda$.
    """
    v = _solve(_damped(surrogate, damping), h)
    rho = relative_error(fisher, surrogate, damping)
    achieved = rate * h @ v - rate**2 / 2 * v @ curvature @ v
    promised = rate * (1 - smoothness * rate / (2 * (1 - rho))) * (h @ v)
    return Bound(jnp.where(rho < 1, promised, -jnp.inf), achieved)


def inverse_bound(fisher: Matrix, surrogate: Matrix, damping: Scalar) -> Bound:
    r"""$\|\widetilde F_\lambda^{-1}\|_{op} \le (\mu_\lambda - \delta)^{-1}$."""
    delta, floor = absolute_error(fisher, surrogate), curvature_floor(fisher, damping)
    limit = jnp.where(delta < floor, 1 / jnp.where(delta < floor, floor - delta, 1.0), jnp.inf)
    return Bound(1 / curvature_floor(surrogate, damping), limit)


def additive_bound(
    fisher: Matrix, surrogate: Matrix, h: Vector, surrogate_h: Vector, damping: Scalar
) -> Bound:
    r"""$\|\widetilde v - v\|$ against `eq:additive_natdir_bound_main`."""
    delta, floor = absolute_error(fisher, surrogate), curvature_floor(fisher, damping)
    gap = jnp.where(delta < floor, floor - delta, 1.0)
    limit = jnp.linalg.norm(surrogate_h - h) / floor
    limit = limit + delta * jnp.linalg.norm(surrogate_h) / (floor * gap)
    return Bound(
        _change(fisher, surrogate, h, surrogate_h, damping),
        jnp.where(delta < floor, limit, jnp.inf),
    )


def coarse_bound(
    fisher: Matrix, surrogate: Matrix, h: Vector, surrogate_h: Vector, damping: Scalar
) -> Bound:
    r"""The bound after `cor:additive_fisher_constants`, which needs no condition.

    $\|\widetilde v - v\| \le \|\widetilde h - h\| / \lambda + \delta \|\widetilde h\| / \lambda^2$.
    """
    delta = absolute_error(fisher, surrogate)
    limit = jnp.linalg.norm(surrogate_h - h) / damping
    limit = limit + delta * jnp.linalg.norm(surrogate_h) / damping**2
    return Bound(_change(fisher, surrogate, h, surrogate_h, damping), limit)


def absolute_error(fisher: Matrix, surrogate: Matrix) -> Float[Array, ""]:
    r"""$\delta = \|\widetilde F - F\|_{op}$."""
    return jnp.max(jnp.abs(jnp.linalg.eigvalsh(surrogate - fisher)))


def curvature_floor(fisher: Matrix, damping: Scalar) -> Float[Array, ""]:
    r"""$\mu_\lambda = \lambda_{\min}(F) + \lambda$."""
    return jnp.linalg.eigvalsh(fisher)[0] + damping


def _change(fisher, surrogate, h, surrogate_h, damping) -> Float[Array, ""]:
    exact = _solve(_damped(fisher, damping), h)
    return jnp.linalg.norm(_solve(_damped(surrogate, damping), surrogate_h) - exact)


def _damped(matrix: Matrix, damping: Scalar) -> Matrix:
    return matrix + damping * jnp.eye(len(matrix), dtype=matrix.dtype)


def _solve(matrix: Matrix, h: Vector) -> Vector:
    return jsl.cho_solve(jsl.cho_factor(matrix), h)


def _norm(matrix: Matrix, x: Vector) -> Float[Array, ""]:
    return jnp.sqrt(x @ matrix @ x)
