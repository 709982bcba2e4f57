"""What a solver is."""

from abc import abstractmethod
from typing import TypeAlias

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from ..fisher import Fisher, Scalar

Parameters: TypeAlias = PyTree[Float[Array, "..."]]
"""Shaped like the parameters of a policy."""


class AbstractSolver(eqx.Module):
    r"""Solves $(F + \lambda I)\, v = h$.

    It never raises on numbers: what comes out is checked once, by the training step. What it
    remembers from one update to the next, and what it has to report, is its state; most
    solvers have none.
    """

    def init(self, params: Parameters) -> PyTree:
        """The state before the first solve."""
        return None

    @abstractmethod
    def solve(
        self, fisher: Fisher, h: Parameters, damping: Scalar, state: PyTree = None
    ) -> tuple[Parameters, PyTree]:
        """The direction $v$, shaped like the parameters of the policy, and the next state."""

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
