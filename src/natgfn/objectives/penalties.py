r"""Penalties $\ell$ on a residual: even functions with $\ell(0) = 0$. Any such function will do."""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class AbstractPenalty(eqx.Module):
    """A penalty that can be named in a configuration; in Python any function will do."""

    @abstractmethod
    def __call__(self, u: Float[Array, ""]) -> Float[Array, ""]:
        """The penalty on one residual."""


class Squared(AbstractPenalty):
    r"""$\ell(u) = u^2$."""

    def __call__(self, u: Float[Array, ""]) -> Float[Array, ""]:
        return u**2


class Huber(AbstractPenalty):
    r"""$u^2$ up to a threshold, and its tangent beyond.

    Attributes:
        threshold: where the tangent starts.
    """

    threshold: float = 1.0

    def __check_init__(self):
        if not self.threshold > 0:
            raise ValueError(f"threshold must be positive, got {self.threshold}")

    def __call__(self, u: Float[Array, ""]) -> Float[Array, ""]:
        return huber(u, self.threshold)


def huber(u: Float[Array, ""], threshold: Float[Array, ""] | float) -> Float[Array, ""]:
    """$u^2$ up to a threshold, and its tangent beyond."""
    size = jnp.abs(u)
    inside = jnp.minimum(size, threshold)
    return inside * (2 * size - inside)


def slope(penalty: Callable[[Array], Array], residuals: Float[Array, " n"]) -> Float[Array, " n"]:
    r"""$\ell'(u)$."""
    return jax.vmap(jax.grad(penalty))(residuals)


def curvature(
    penalty: Callable[[Array], Array], residuals: Float[Array, " n"]
) -> Float[Array, " n"]:
    r"""$\ell'(u) / 2u$: the weight of a residual in iterated least squares, 1 for squares."""
    limit = jax.grad(jax.grad(penalty))(0.0) / 2
    zero = residuals == 0
    safe = jnp.where(zero, 1.0, residuals)
    return jnp.where(zero, limit, slope(penalty, safe) / (2 * safe))
