"""Update rules: an optax transformation, and what it needs to know about a batch."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import optax

from ..envs.base import AbstractEnv
from ..fisher import Fisher
from ..objectives import Batch
from ..occupancy import AbstractOccupancy, Exact, Sampled
from ..occupancy.base import require_space
from ..policies import Flow
from ..solvers import AbstractSolver, Block, require_positive, tabular_gram
from .natural import by_part, fitted_natural_gradient, gauss_newton, natural_gradient


class AbstractRule(eqx.Module):
    """How one update is made from one batch."""

    @abstractmethod
    def transform(self) -> optax.GradientTransformationExtraArgs:
        """From the gradient of a `Flow` to its step."""

    @abstractmethod
    def context(self, env: AbstractEnv, flow: Flow, batch: Batch) -> dict[str, Any]:
        """The extra arguments of the transformation."""

    def metric(self) -> tuple[AbstractOccupancy | None, float]:
        """The occupancy and the damping of the Fisher that it preconditions with.

        None stands for the outer product of trajectory scores. A rule that uses no Fisher is
        judged by the one that its batch would give.
        """
        return Sampled(), 1e-3


class Euclidean(AbstractRule):
    """Stochastic gradient descent, the paper's baseline.

    Attributes:
        rate: of the forward policy.
        backward_rate: of the backward policy.
        log_z_rate: of $\\log Z$.
    """

    rate: float = 0.1
    backward_rate: float = 0.01
    log_z_rate: float = 0.01

    def __check_init__(self):
        check_rates(self)

    def transform(self):
        return by_part(
            optax.sgd(self.rate), optax.sgd(self.backward_rate), optax.sgd(self.log_z_rate)
        )

    def context(self, env, flow, batch):
        return {}


class Adam(AbstractRule):
    """Adam, with rates as in `Euclidean`."""

    rate: float = 1e-2
    backward_rate: float = 1e-2
    log_z_rate: float = 1e-1

    def __check_init__(self):
        check_rates(self)

    def transform(self):
        return by_part(
            optax.adam(self.rate), optax.adam(self.backward_rate), optax.adam(self.log_z_rate)
        )

    def context(self, env, flow, batch):
        return {}


class Natural(AbstractRule):
    """The damped natural gradient of `alg:natgrad_gflownet`.

    The backward policy and $\\log Z$ take Euclidean steps. Without a rate, the step is fitted
    to each batch (`fitted_natural_gradient`). That works well where trajectories are unique
    and with `Sampled`; with `Exact` on the hypergrid, one seed in five took long to find its
    last mode, because rare states divide a gradient that one sample made by next to nothing.

    Attributes:
        occupancy: the Fisher mode.
        solver: of the damped system.
        damping: $\\lambda$.
        rate: of the forward policy; None to fit it, with $\\log Z$, to each batch.
        backward_rate: of the backward policy.
        log_z_rate: of $\\log Z$, unless it is fitted.
    """

    occupancy: AbstractOccupancy = Exact()
    solver: AbstractSolver = Block()
    damping: float = 1e-3
    rate: float | None = None
    backward_rate: float = 0.01
    log_z_rate: float = 0.01

    def __check_init__(self):
        check_rates(self)
        self.solver.check_damping(self.damping)

    def transform(self):
        backward = optax.sgd(self.backward_rate)
        if self.rate is None:
            return fitted_natural_gradient(self.solver, self.damping, backward)
        forward = optax.chain(natural_gradient(self.solver, self.damping), optax.sgd(self.rate))
        return by_part(forward, backward, optax.sgd(self.log_z_rate))

    def context(self, env, flow, batch):
        visited = self.occupancy(env, flow.forward, batch)
        return {"fisher": Fisher(env, flow.forward, visited), "batch": batch}

    def metric(self):
        return self.occupancy, self.damping


class SampleSpace(AbstractRule):
    """The unit natural step in sample space, for both policies and $\\log Z$ at once.

    Nothing to tune: see `natgfn.solvers.sample_space` for why the unit step is right.

    Attributes:
        damping: $\\lambda$.
    """

    damping: float = 1e-3

    def __check_init__(self):
        require_positive(self.damping)

    def transform(self):
        return gauss_newton(self.damping)

    def context(self, env, flow, batch):
        space = require_space(env, "optim.SampleSpace")
        return {"gram": tabular_gram(space, flow, batch), "batch": batch}

    def metric(self):
        return None, self.damping


def check_rates(rule: AbstractRule) -> None:
    """Every rate of a rule must be a finite number, not below zero."""
    for name, value in vars(rule).items():
        if name.endswith("rate") and value is not None and not 0 <= value < float("inf"):
            raise ValueError(f"{name} must be zero or positive and finite, got {value}")
