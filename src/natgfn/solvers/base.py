"""What a solver is."""

from abc import abstractmethod

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from ..fisher import Fisher, Scalar


class AbstractSolver(eqx.Module):
    r"""Solves $(F + \lambda I)\, v = h$.

    It never raises on numbers: what comes out is checked once, by the training step.
    """

    @abstractmethod
    def solve(
        self, fisher: Fisher, h: PyTree[Float[Array, "..."]], damping: Scalar
    ) -> PyTree[Float[Array, "..."]]:
        """The direction $v$, shaped like the parameters of the policy."""

    @abstractmethod
    def check_damping(self, damping: float) -> None:
        """Raise `ValueError` for a damping that the solver cannot use."""


def require_positive(damping: float) -> None:
    """The check of every solver of a damped system."""
    if not 0 < damping < float("inf"):
        raise ValueError(
            f"damping must be positive and finite, got {damping}; "
            "the solver BlockPseudoinverse works without"
        )
