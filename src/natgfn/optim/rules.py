"""Update rules: an optax transformation, and what it needs to know about a batch."""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import optax

from ..envs import AbstractEnv
from ..fisher import Fisher, Scalar
from ..objectives import Batch, Expected
from ..occupancy import AbstractOccupancy, Exact, Sampled, Separators, Trajectories
from ..policies import Flow
from ..solvers import (
    AbstractSolver,
    Auto,
    BlockPseudoinverse,
    ConjugateGradients,
    require_positive,
)
from .natural import (
    by_part,
    fitted_natural_gradient,
    natural_gradient,
    own_log_z,
    proximal,
)
from .schedules import Rate, at
from .trust_region import kl_trust_region, levenberg_marquardt


class AbstractRule(eqx.Module):
    """How one update is made from one batch."""

    whole: ClassVar[bool] = False
    """Whether it needs the Jacobian of the residuals, and not only the gradient."""

    @abstractmethod
    def transform(self) -> optax.GradientTransformationExtraArgs:
        """From the gradient of a `Flow` to its step."""

    @abstractmethod
    def context(self, env: AbstractEnv, flow: Flow, batch: Batch | Expected) -> dict[str, Any]:
        """The extra arguments of the transformation."""

    def metric(self) -> tuple[AbstractOccupancy, Rate | Scalar]:
        """The occupancy and the damping of the Fisher that it preconditions with.

        A rule that uses no Fisher is judged by the one that its batch would give.
        """
        return Sampled(), 1e-3


class Euclidean(AbstractRule):
    """Stochastic gradient descent, the paper's baseline.

    Attributes:
        rate: of the forward policy, and of state flows.
        backward_rate: of the backward policy.
        log_z_rate: of $\\log Z$.
        clip: the largest norm of the gradient of all parameters, if any.
        adaptive_log_z: whether $\\log Z$ takes Adam steps.
    """

    rate: Rate = 0.1
    backward_rate: Rate = 0.01
    log_z_rate: Rate = 0.01
    clip: float | None = None
    adaptive_log_z: bool = False

    def __check_init__(self):
        check_rates(self)

    def transform(self) -> optax.GradientTransformationExtraArgs:
        log_z = optax.adam if self.adaptive_log_z else optax.sgd
        steps = by_part(
            forward=optax.sgd(self.rate),
            backward=optax.sgd(self.backward_rate),
            log_z=log_z(self.log_z_rate),
            states=optax.sgd(self.rate),
        )
        return clipped(self.clip, steps)

    def context(self, env: AbstractEnv, flow: Flow, batch: Batch | Expected) -> dict[str, Any]:
        return {}


class Adam(AbstractRule):
    """Adam, with rates and clipping as in `Euclidean`."""

    rate: Rate = 1e-2
    backward_rate: Rate = 1e-2
    log_z_rate: Rate = 1e-1
    clip: float | None = None

    def __check_init__(self):
        check_rates(self)

    def transform(self) -> optax.GradientTransformationExtraArgs:
        steps = by_part(
            forward=optax.adam(self.rate),
            backward=optax.adam(self.backward_rate),
            log_z=optax.adam(self.log_z_rate),
            states=optax.adam(self.rate),
        )
        return clipped(self.clip, steps)

    def context(self, env: AbstractEnv, flow: Flow, batch: Batch | Expected) -> dict[str, Any]:
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
        flow_rate: of Adam steps for state flows, where there are any.
    """

    occupancy: AbstractOccupancy = Exact()
    solver: AbstractSolver = Auto()
    damping: Rate = 1e-3
    rate: Rate | None = None
    backward_rate: Rate = 0.01
    log_z_rate: Rate = 0.01
    flow_rate: Rate = 0.01

    def __check_init__(self):
        check_rates(self)
        check_damping(self.solver, self.damping)

    @classmethod
    def without_noise(cls) -> "Natural":
        """For gradients in expectation (`sources.Messages`), of a table of contexts.

        Fisher and gradient are exact, so nothing is damped, and half of the natural direction of
        squared trajectory balance solves every context for the children that it has.
        """
        solver = BlockPseudoinverse()
        return cls(Separators(), solver, damping=0.0, rate=0.5, log_z_rate=0.5)

    def transform(self) -> optax.GradientTransformationExtraArgs:
        backward = optax.sgd(self.backward_rate)
        if self.rate is None:
            return fitted_natural_gradient(self.solver, self.damping, backward)
        forward = optax.chain(natural_gradient(self.solver, self.damping), optax.sgd(self.rate))
        return by_part(
            forward=forward,
            backward=backward,
            log_z=optax.sgd(self.log_z_rate),
            states=optax.adam(self.flow_rate),
        )

    def context(self, env: AbstractEnv, flow: Flow, batch: Batch | Expected) -> dict[str, Any]:
        visited = self.occupancy(env, flow.forward, batch)
        return {"fisher": Fisher(env, flow.forward, visited), "batch": batch}

    def metric(self) -> tuple[AbstractOccupancy, Rate | Scalar]:
        return self.occupancy, self.damping


class FisherAdam(AbstractRule):
    r"""The natural gradient of Adam's first moment (`alg:fisher_adam_gflownet`).

    As printed, the moment is taken before the solve. It then holds directions that the states
    of this batch do not see, and the damped inverse multiplies those by $1 / \lambda$: a
    certificate reports how much (`momentum_outside`). Taken after the solve, it does not.

    Attributes:
        solver: of the damped system.
        occupancy: the Fisher mode.
        damping: $\lambda$.
        rate: $\alpha_\theta$, of the forward policy.
        momentum: $\beta_1$, the decay of the first moment.
        momentum_after: whether the moment is that of the solutions instead of the gradients.
        backward_rate: of the backward policy.
        log_z_rate: of Adam steps for $\log Z$.
        flow_rate: of Adam steps for state flows, where there are any.
        clip: the largest norm of the gradient of all parameters, if any.
        kl: the largest divergence of a step of the forward policy, if any (`kl_trust_region`).
        adaptive: whether the damping follows the fit of the residuals' linear model
            (`levenberg_marquardt`), from `damping` on; a certificate knows the latter only.
    """

    solver: AbstractSolver = ConjugateGradients()
    occupancy: AbstractOccupancy = Sampled()
    damping: Rate = 1e-3
    rate: Rate = 1e-3
    momentum: float = 0.9
    momentum_after: bool = False
    backward_rate: Rate = 0.01
    log_z_rate: Rate = 0.1
    flow_rate: Rate = 0.01
    clip: float | None = None
    kl: float | None = None
    adaptive: bool = False

    def __check_init__(self):
        check_rates(self)
        check_momentum(self.momentum)
        check_damping(self.solver, self.damping)
        check_limit(self.kl)
        if self.adaptive:
            if callable(self.damping):
                raise ValueError("adaptive damping starts from a number, not from a schedule")
            require_positive(self.damping)

    def transform(self) -> optax.GradientTransformationExtraArgs:
        if self.adaptive:
            return clipped(self.clip, levenberg_marquardt(self._steps, at(self.damping, 0)))
        return clipped(self.clip, self._steps(self.damping))

    def _steps(self, damping: Rate | Scalar) -> optax.GradientTransformationExtraArgs:
        moment = optax.ema(self.momentum)
        solve = natural_gradient(self.solver, damping)
        order = (solve, moment) if self.momentum_after else (moment, solve)
        bound = () if self.kl is None else (kl_trust_region(self.kl),)
        forward = optax.chain(*order, optax.sgd(self.rate), *bound)
        return by_part(
            forward=forward,
            backward=optax.sgd(self.backward_rate),
            log_z=optax.adam(self.log_z_rate),
            states=optax.adam(self.flow_rate),
        )

    def context(self, env: AbstractEnv, flow: Flow, batch: Batch | Expected) -> dict[str, Any]:
        visited = self.occupancy(env, flow.forward, batch)
        fisher = Fisher(env, flow.forward, visited)
        return {"fisher": fisher, "env": env, "flow": flow, "batch": batch}

    def metric(self) -> tuple[AbstractOccupancy, Rate | Scalar]:
        return self.occupancy, self.damping


class SampleSpace(AbstractRule):
    r"""The natural step in sample space, for both policies and $\log Z$ at once.

    For a table there is nothing to tune: see `natgfn.solvers.sample_space` for why the unit step
    is right. A network takes smaller damped steps with momentum, in Adam's metric:
    `SampleSpace.network()`.

    Attributes:
        damping: $\lambda$.
        momentum: $\mu$, of the proximal form; the step is $1 - \mu$ times its direction.
        scaled: whether the damping is in Adam's metric, $\lambda \sqrt v$ with $v$ a running mean
            of squared gradients, instead of $\lambda I$.
        log_z_rate: of an Adam step for $\log Z$; by default it is part of the system.
        kl: the largest divergence of a step, as the batch predicts it, if any.
    """

    whole: ClassVar[bool] = True

    damping: Rate = 1e-3
    momentum: float | None = None
    scaled: bool = False
    log_z_rate: Rate | None = None
    kl: float | None = None

    def __check_init__(self):
        if not callable(self.damping):
            require_positive(self.damping)
        check_rates(self)
        check_limit(self.kl)
        if self.momentum is not None:
            check_momentum(self.momentum)

    @classmethod
    def network(cls, kl: float = 0.05) -> "SampleSpace":
        """What a network needs; steps are shorter where it has to find modes by itself
        (`training.usual_proposal`)."""
        return cls(damping=10.0, momentum=0.9, scaled=True, log_z_rate=0.1, kl=kl)

    def transform(self) -> optax.GradientTransformationExtraArgs:
        step = proximal(self.damping, self.momentum, 0.999 if self.scaled else None, self.kl)
        if self.log_z_rate is not None:
            step = own_log_z(step, optax.adam(self.log_z_rate))
        return step

    def context(self, env: AbstractEnv, flow: Flow, batch: Batch | Expected) -> dict[str, Any]:
        batch.require_residuals_only("SampleSpace")
        assert isinstance(batch, Batch)
        return {"fisher": Trajectories().fisher(env, flow, batch)}

    def metric(self) -> tuple[AbstractOccupancy, Rate | Scalar]:
        # Another metric than the Fisher's in the damping: there is no lambda to certify.
        return super().metric() if self.scaled else (Trajectories(), self.damping)


def clipped(
    norm: Scalar | None, steps: optax.GradientTransformationExtraArgs
) -> optax.GradientTransformationExtraArgs:
    """The same steps, for gradients cut to a norm."""
    if norm is None:
        return steps
    return optax.chain(optax.clip_by_global_norm(norm), steps)


def check_momentum(momentum: float) -> None:
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be from 0 to below 1, got {momentum}")


def check_limit(kl: float | None) -> None:
    """A bound on the divergence of a step must be positive and finite, in nats, or None."""
    if kl is not None and not 0 < kl < float("inf"):
        raise ValueError(f"kl must be positive and finite, got {kl}")


def check_damping(solver: AbstractSolver, damping: Rate) -> None:
    """Whether a solver can use a damping; of a schedule that is not known beforehand."""
    if not callable(damping):
        solver.check_damping(damping)


def check_rates(rule: AbstractRule) -> None:
    """Every rate of a rule must be a finite number, not below zero, or a schedule."""
    for name, value in vars(rule).items():
        if value is None or callable(value):
            continue
        if name.endswith("rate") and not 0 <= value < float("inf"):
            raise ValueError(f"{name} must be zero or positive and finite, got {value}")
        if name == "clip" and not value > 0:
            raise ValueError(f"clip must be positive, got {value}")
