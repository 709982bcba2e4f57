"""The update rules of the paper's study of directed graphs (`app:sachs_dag_details`)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from ..envs.base import AbstractEnv
from ..fisher import Fisher, Occupancy, Scalar
from ..objectives import Batch
from ..occupancy import Stratified
from ..occupancy.stratified import pick
from ..policies import Flow
from ..solvers import AbstractSolver, ConjugateGradients, require_positive
from .natural import by_part, natural_gradient, transformation
from .rules import AbstractRule, check_limit, check_rates
from .trust_region import kl_trust_region


class DecayedAdam(AbstractRule):
    """Adam with weight decay, as a part of the gradient; $\\log Z$ by gradient descent.

    Attributes:
        rate: of the forward policy.
        log_z_rate: of $\\log Z$.
        clip: the largest norm of the gradient of the forward policy.
        weight_decay: of the forward policy.
    """

    rate: float = 3e-4
    log_z_rate: float = 1e-3
    clip: float = 1.0
    weight_decay: float = 1e-5

    def __check_init__(self):
        check_rates(self)
        if not 0 <= self.weight_decay < float("inf"):
            raise ValueError(
                f"weight_decay must be zero or positive and finite, got {self.weight_decay}"
            )

    def transform(self):
        # The proposal has a state of its own, which another rule with the same can go on from.
        proposal = optax.chain(
            optax.clip_by_global_norm(self.clip),
            optax.add_decayed_weights(self.weight_decay),
            *self.proposal(),
        )
        still = optax.set_to_zero()
        forward = optax.chain(proposal, *self.bounds())
        return by_part(forward, still, optax.sgd(self.log_z_rate), still)

    def proposal(self) -> tuple[optax.GradientTransformation, ...]:
        """From the gradient to a step."""
        return (optax.adam(self.rate),)

    def bounds(self) -> tuple[optax.GradientTransformation, ...]:
        """What a step is subject to."""
        return ()

    def context(self, env: AbstractEnv, flow: Flow, batch: Batch) -> dict[str, Any]:
        return {}


class ControlledAdam(DecayedAdam):
    """The same step, bounded in norm and in every state: the ablation of `DampedFisher`.

    Attributes:
        norm: the largest norm of a step.
        kl: the largest divergence in a state of `states` and `guard` others.
        states: of the Fisher.
        guard: how many more states of the batch a step is measured in.
    """

    norm: float = 1e-2
    kl: float = 1e-4
    states: int = 128
    guard: int = 256

    def __check_init__(self):
        super().__check_init__()
        check_limit(self.kl)
        if not 0 <= self.norm < float("inf"):
            raise ValueError(f"norm must be zero or positive and finite, got {self.norm}")

    def bounds(self) -> tuple[optax.GradientTransformation, ...]:
        measured = on_guard(kl_trust_region(self.kl, statewise=True))
        return optax.clip_by_global_norm(self.norm), measured

    def context(self, env, flow, batch):
        states, valid = pick(batch, self.states + self.guard)
        own = jnp.arange(valid.size) < self.states
        few = valid[: self.states] / jnp.maximum(jnp.sum(valid & own), 1)
        first = jax.tree.map(lambda x: x[: self.states], states)
        return {
            "fisher": Fisher(env, flow.forward, Occupancy(first, few)),
            "guard": Fisher(env, flow.forward, Occupancy(states, valid.astype(few.dtype))),
        }

    def metric(self):
        return Stratified(self.states), 0.03


class DampedFisher(ControlledAdam):
    r"""A damped solve on a mean over states, in small measured steps.

    Attributes:
        damping: $\lambda$ at first.
        most: what a retry of conjugate gradients may double it to.
        solver: of the damped system. Only conjugate gradients say how good their solution is,
            so that the damping of other solvers stays as it is.
    """

    rate: float = 0.05
    damping: float = 0.03
    most: float = 0.3
    solver: AbstractSolver = ConjugateGradients(
        iterations=40, tolerance=0.05, warm_start=True, preconditioner=True
    )

    def __check_init__(self):
        super().__check_init__()
        require_positive(self.damping)
        if not self.damping <= self.most:
            raise ValueError(f"most must be at least the damping, got {self.most}")

    def proposal(self):
        if isinstance(self.solver, ConjugateGradients):
            solve = adaptive_solve(self.solver, self.damping, self.most)
        else:
            solve = natural_gradient(self.solver, self.damping)
        return solve, optax.sgd(self.rate)

    def bounds(self):
        norm, measured = super().bounds()
        return norm, limit_predicted(self.kl), measured

    def metric(self):
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


def limit_predicted(limit: Scalar) -> optax.GradientTransformationExtraArgs:
    r"""Shorten a step $\Delta$ until $\frac12 \Delta^\top F \Delta$ is at most `limit`."""

    def update(updates, state, params=None, *, fisher, **extra: Any):
        pairs = zip(jax.tree.leaves(updates), jax.tree.leaves(fisher.mv(updates)), strict=True)
        predicted = sum(jnp.vdot(x, y) for x, y in pairs) / 2
        long = predicted > limit
        scale = jnp.where(long, jnp.sqrt(limit / jnp.where(long, predicted, 1.0)), 1.0)
        return jax.tree.map(lambda x: scale * x, updates), state

    return transformation(lambda _: optax.EmptyState(), update)


def on_guard(
    steps: optax.GradientTransformationExtraArgs,
) -> optax.GradientTransformationExtraArgs:
    """The same, with the states of `guard` in place of those of `fisher`."""

    def update(updates, state, params=None, *, guard, **extra: Any):
        return steps.update(updates, state, params, **{**extra, "fisher": guard})

    return transformation(steps.init, update)
