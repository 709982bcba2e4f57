"""The matrix, formed and factorised: for small problems, and to check the others."""

import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..fisher import Fisher, Scalar
from .base import AbstractSolver, Parameters, require_positive


class Dense(AbstractSolver):
    """Cholesky factorisation of the whole damped Fisher, of any policy."""

    def solve(
        self, fisher: Fisher, h: Parameters, damping: Scalar, state: PyTree = None
    ) -> tuple[Parameters, PyTree]:
        flat, unravel = ravel_pytree(h)
        matrix = fisher.as_matrix() + damping * jnp.eye(flat.size, dtype=flat.dtype)
        return unravel(jsl.cho_solve(jsl.cho_factor(matrix), flat)), state

    def check_damping(self, damping: float) -> None:
        require_positive(damping)
