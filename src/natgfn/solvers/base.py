"""What a solver is."""

from abc import abstractmethod

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from ..fisher import Fisher


class AbstractSolver(eqx.Module):
    r"""Solves $(F + \lambda I)\, v = h$. It never raises on numbers: what comes out is checked once,
    by the training step."""

    @abstractmethod
    def solve(
        self, fisher: Fisher, h: PyTree[Float[Array, "..."]], damping: Float[Array, ""] | float
    ) -> PyTree[Float[Array, "..."]]:
        """The direction $v$, shaped like the parameters of the policy."""


def check_damping(damping: Float[Array, ""] | float, what: str) -> None:
    if isinstance(damping, float | int) and not damping > 0:
        raise ValueError(
            f"{what} needs damping > 0, got {damping}; BlockPseudoinverse does without"
        )
