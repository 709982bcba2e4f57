"""The solver that suits a policy and a batch."""

import logging

import equinox as eqx
import jax
from jaxtyping import PyTree

from ..fisher import Fisher, Scalar
from ..policies import AbstractPolicy, Tabular
from .base import AbstractSolver, Parameters, require_positive
from .block import Block
from .cg import ConjugateGradients
from .dense import Dense
from .rows import Rows


class Auto(AbstractSolver):
    """`Block` for a table; else the cheaper exact solver, or `ConjugateGradients` beyond a budget.

    What was picked is logged, to "natgfn", whenever a program is compiled.

    Attributes:
        budget: of an exact solve, in multiply-adds; the default is some ten milliseconds.
    """

    budget: int = 10**8

    def __check_init__(self):
        if self.budget < 0:
            raise ValueError(f"budget must not be negative, got {self.budget}")

    def pick(self, policy: AbstractPolicy, rows: int, actions: int = 1) -> AbstractSolver:
        """The solver.

        Args:
            policy: of which the type and the number of parameters matter.
            rows: states of the occupancy, padding too: live ones are not known beforehand.
            actions: of the environment, or 1 where the occupancy carries sampled ones.
        """
        if isinstance(policy, Tabular):
            return Block()
        cost = costs(_parameters(policy), rows, actions)
        exact = min(cost, key=lambda solver: cost[solver])
        return exact() if cost[exact] <= self.budget else ConjugateGradients()

    def init(self, params: Parameters) -> PyTree:
        # That of conjugate gradients for every network: what is picked is not known yet.
        return None if isinstance(params, Tabular) else ConjugateGradients().init(params)

    def solve(
        self, fisher: Fisher, h: Parameters, damping: Scalar, state: PyTree = None
    ) -> tuple[Parameters, PyTree]:
        rows, exact = fisher.occupancy.weights.size, fisher.occupancy.actions is None
        solver = self.pick(fisher.policy, rows, fisher.env.num_actions if exact else 1)
        logging.getLogger("natgfn").info(
            "solver: %s (%s parameters, %s states)",
            type(solver).__name__,
            f"{_parameters(fisher.policy):,}",
            f"{rows:,}",
        )
        return solver.solve(fisher, h, damping, state)

    def check_damping(self, damping: float) -> None:
        require_positive(damping)


def costs(parameters: int, states: int, actions: int) -> dict[type[Dense | Rows], int]:
    """Multiply-adds of each exact solver, where a pass through the policy is one a parameter."""
    p, r = parameters, states * actions
    return {
        Dense: 2 * states * p**2 + p**3 // 3,  # p products, a factorisation
        Rows: r * p + r**2 * p + r**3 // 3,  # r passes back, their products, a factorisation
    }


def _parameters(policy: AbstractPolicy) -> int:
    return sum(x.size for x in jax.tree.leaves(eqx.filter(policy, eqx.is_inexact_array)))
