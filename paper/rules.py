"""The update rules of the paper's study of directed graphs (`app:sachs_dag_details`)."""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from natgfn.envs import AbstractEnv
from natgfn.fisher import Fisher, Occupancy, Scalar
from natgfn.objectives import AbstractPenalty, Batch, Expected, huber
from natgfn.occupancy import Stratified, pick
from natgfn.optim import (
    AbstractRule,
    by_part,
    check_limit,
    check_rates,
    divergence_in_fisher,
    kl_trust_region,
    limit_divergence,
    natural_gradient,
    transformation,
)
from natgfn.policies import Flow
from natgfn.solvers import AbstractSolver, ConjugateGradients, require_positive


class HalfHuber(AbstractPenalty):
    r"""$u^2 / 2$ up to a threshold, and its tangent beyond: the Huber loss of most libraries.

    Attributes:
        threshold: where the tangent starts.
    """

    threshold: float = 1.0

    def __call__(self, u: Float[Array, ""]) -> Float[Array, ""]:
        return huber(u, self.threshold) / 2


class AbstractStudied(AbstractRule):
    """A step of the forward policy from a clipped gradient with weight decay; $\\log Z$ by
    gradient descent."""

    rate: eqx.AbstractVar[float]
    """Of the forward policy."""
    log_z_rate: eqx.AbstractVar[float]
    r"""Of $\log Z$."""
    clip: eqx.AbstractVar[float]
    """The largest norm of the gradient of the forward policy."""
    weight_decay: eqx.AbstractVar[float]
    """Of the forward policy, as a part of its gradient."""

    def __check_init__(self):
        check_rates(self)
        if not 0 <= self.weight_decay < float("inf"):
            raise ValueError(
                f"weight_decay must be zero or positive and finite, got {self.weight_decay}"
            )

    def transform(self) -> optax.GradientTransformationExtraArgs:
        # The proposal has a state of its own, which another rule with the same can go on from.
        proposal = optax.chain(
            optax.clip_by_global_norm(self.clip),
            optax.add_decayed_weights(self.weight_decay),
            *self.proposal(),
        )
        still = optax.set_to_zero()
        forward = optax.chain(proposal, *self.bounds())
        return by_part(forward, still, optax.sgd(self.log_z_rate), still)

    @abstractmethod
    def proposal(self) -> tuple[optax.GradientTransformation, ...]:
        """From the gradient to a step."""

    @abstractmethod
    def bounds(self) -> tuple[optax.GradientTransformation, ...]:
        """What a step is subject to."""


class DecayedAdam(AbstractStudied):
    """Adam with weight decay."""

    rate: float = 3e-4
    log_z_rate: float = 1e-3
    clip: float = 1.0
    weight_decay: float = 1e-5

    def proposal(self) -> tuple[optax.GradientTransformation, ...]:
        return (optax.adam(self.rate),)

    def bounds(self) -> tuple[optax.GradientTransformation, ...]:
        return ()

    def context(self, env: AbstractEnv, flow: Flow, batch: Batch | Expected) -> dict[str, Any]:
        return {}


class AbstractControlled(AbstractStudied):
    """A step that is bounded in norm and in every state of a sample."""

    norm: eqx.AbstractVar[float]
    """The largest norm of a step."""
    kl: eqx.AbstractVar[float]
    """The largest divergence in a state of `states` and `guard` others."""
    states: eqx.AbstractVar[int]
    """Of the Fisher."""
    guard: eqx.AbstractVar[int]
    """How many more states of the batch a step is measured in."""

    def __check_init__(self):
        check_limit(self.kl)
        if not 0 <= self.norm < float("inf"):
            raise ValueError(f"norm must be zero or positive and finite, got {self.norm}")

    def context(self, env: AbstractEnv, flow: Flow, batch: Batch | Expected) -> dict[str, Any]:
        assert isinstance(batch, Batch)
        states, valid = pick(batch, self.states + self.guard)
        own = jnp.arange(valid.size) < self.states
        few = valid[: self.states] / jnp.maximum(jnp.sum(valid & own), 1)
        first = jax.tree.map(lambda x: x[: self.states], states)
        return {
            "fisher": Fisher(env, flow.forward, Occupancy(first, few)),
            "guard": Fisher(env, flow.forward, Occupancy(states, valid.astype(few.dtype))),
        }

    def measured(self) -> optax.GradientTransformationExtraArgs:
        """The bound in every state."""
        return on_guard(kl_trust_region(self.kl, statewise=True))


class ControlledAdam(AbstractControlled):
    """Adam's step under those bounds: the ablation of `DampedFisher`."""

    rate: float = 3e-4
    log_z_rate: float = 1e-3
    clip: float = 1.0
    weight_decay: float = 1e-5
    norm: float = 1e-2
    kl: float = 1e-4
    states: int = 128
    guard: int = 256

    def proposal(self) -> tuple[optax.GradientTransformation, ...]:
        return (optax.adam(self.rate),)

    def bounds(self) -> tuple[optax.GradientTransformation, ...]:
        return optax.clip_by_global_norm(self.norm), self.measured()

    def metric(self) -> tuple[Stratified, float]:
        return Stratified(self.states), 0.03


class DampedFisher(AbstractControlled):
    r"""A damped solve on a mean over states, in small measured steps.

    Attributes:
        damping: $\lambda$ at first.
        most: what a retry of conjugate gradients may double it to.
        solver: of the damped system. Only conjugate gradients say how good their solution is,
            so that the damping of other solvers stays as it is.
    """

    rate: float = 0.05
    log_z_rate: float = 1e-3
    clip: float = 1.0
    weight_decay: float = 1e-5
    norm: float = 1e-2
    kl: float = 1e-4
    states: int = 128
    guard: int = 256
    damping: float = 0.03
    most: float = 0.3
    solver: AbstractSolver = ConjugateGradients(
        iterations=40, tolerance=0.05, warm_start=True, preconditioner=True
    )

    def __check_init__(self):
        require_positive(self.damping)
        if not self.damping <= self.most:
            raise ValueError(f"most must be at least the damping, got {self.most}")

    def proposal(self) -> tuple[optax.GradientTransformation, ...]:
        if isinstance(self.solver, ConjugateGradients):
            solve = adaptive_solve(self.solver, self.damping, self.most)
        else:
            solve = natural_gradient(self.solver, self.damping)
        return solve, optax.sgd(self.rate)

    def bounds(self) -> tuple[optax.GradientTransformation, ...]:
        predicted = limit_divergence(self.kl, divergence_in_fisher)
        return optax.clip_by_global_norm(self.norm), predicted, self.measured()

    def metric(self) -> tuple[Stratified, float]:
        return Stratified(self.states), self.damping


class AdaptiveSolve(NamedTuple):
    """What `adaptive_solve` remembers."""

    damping: Float[Array, ""]
    solver: PyTree


def adaptive_solve(
    solver: ConjugateGradients, damping: Scalar, most: Scalar
) -> optax.GradientTransformationExtraArgs:
    """Solve; where that misses the tolerance, double the damping, if allowed, and solve again.

    A solve that succeeds in half of its iterations lowers the damping by a tenth for the next.
    `update` takes `fisher`.
    """

    def init(params):
        return AdaptiveSolve(jnp.asarray(damping, float), solver.init(params))

    def update(updates, state, params=None, *, fisher, **extra: Any):
        direction, solved = solver.solve(fisher, updates, state.damping, state.solver)
        missed = solved.residual > solver.tolerance
        doubled = jnp.minimum(2 * state.damping, most)

        def again():
            return *solver.solve(fisher, updates, doubled, solved), doubled

        def keep():
            return direction, solved, state.damping

        retry = missed & (doubled > state.damping)
        direction, solved, used = jax.lax.cond(retry, again, keep)
        fast = (solved.residual <= solver.tolerance) & (solved.iterations <= solver.iterations // 2)
        return direction, AdaptiveSolve(jnp.where(fast, 0.9 * used, used), solved)

    return transformation(init, update)


def on_guard(
    steps: optax.GradientTransformationExtraArgs,
) -> optax.GradientTransformationExtraArgs:
    """The same, with the states of `guard` in place of those of `fisher`."""

    def update(updates, state, params=None, *, guard, **extra: Any):
        return steps.update(updates, state, params, **{**extra, "fisher": guard})

    return transformation(steps.init, update)
