r"""Natural-gradient steps as optax transformations (`eq:gflownet_natgrad_update`).

They compose with everything of optax: clipping, momentum, schedules. What they need to know
about the batch comes in as an extra argument of `update`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from ..fisher import Fisher, Scalar
from ..solvers import AbstractSolver, proximal_step
from .schedules import Rate, at


def natural_gradient(
    solver: AbstractSolver, damping: Rate | Scalar
) -> optax.GradientTransformationExtraArgs:
    r"""$h \mapsto (\widehat F + \lambda I)^{-1} h$; `update` takes the operator as `fisher`."""

    def update(updates, state, params=None, *, fisher, step=0, **extra: Any):
        return solver.solve(fisher, updates, at(damping, step), state)

    return transformation(solver.init, update)


def fitted_natural_gradient(
    solver: AbstractSolver, damping: Rate | Scalar, backward: optax.GradientTransformation
) -> optax.GradientTransformationExtraArgs:
    r"""The natural direction with the step that fits the batch best, and $\log Z$ with it.

    A sampled gradient gives each state on a trajectory that trajectory's whole residual.
    The blocks of a per-step Fisher know nothing of each other, so each of the $T$ states
    corrects all of it: the unit step is about $T$ times too long. Instead the rate $\eta$ and
    the change $\zeta$ of $\log Z$ minimise
    $$\sum_i \omega_i (\delta_i + \zeta - \eta\, z_i^\top v)^2,$$
    two numbers fitted to $N$ residuals. The direction is that of the residuals with $\log Z$
    already at its best, that is, centred: a $\log Z$ that is far off would otherwise drown it
    in noise. This is for objectives without state flows.

    `update` takes `fisher` and `batch`, and handles a whole `Flow`.
    """

    def init(params):
        if params.states is not None:
            raise ValueError(
                "Natural without a rate fits the step of policies and log Z, and this objective "
                "has state flows too: give it a rate"
            )
        return solver.init(params.forward), backward.init(params.backward)

    def update(updates, state, params, *, fisher, batch, step=0, **extra: Any):
        batch.require_residuals_only("Natural without a rate")
        weights = batch.least_squares_weights()
        share = weights / jnp.sum(weights)
        mean = share @ batch.residuals
        centred = batch.residuals - mean
        gradient = batch.pull(2 * share * centred).forward
        direction, solved = solver.solve(fisher, gradient, at(damping, step), state[0])
        still = jax.tree.map(jnp.zeros_like, params)
        slope = batch.push(eqx.tree_at(lambda flow: flow.forward, still, direction))
        mean_slope = share @ slope
        spread = share @ (slope - mean_slope) ** 2
        # Equal residuals leave nothing to fit but log Z.
        rate = jnp.where(
            spread > 0, share @ (slope * centred) / jnp.where(spread > 0, spread, 1), 0
        )
        back, stepped = backward.update(updates.backward, state[1], params.backward)
        forward = jax.tree.map(lambda v: -rate * v, direction)
        return type(updates)(forward, back, rate * mean_slope - mean), (solved, stepped)

    return transformation(init, update)


class Proximal(NamedTuple):
    """What `proximal` remembers."""

    phi: PyTree
    """The last direction, if there is momentum."""
    square: PyTree
    """The running mean of squared gradients, if the metric is scaled by it."""
    updates: Int[Array, ""]


def proximal(
    damping: Rate | Scalar, momentum: Scalar | None, memory: Scalar | None, kl: Scalar | None
) -> optax.GradientTransformationExtraArgs:
    r"""The sample-space step, for all parameters at once.

    `update` takes `fisher`, a `ScoreFisher`.

    Args:
        damping: $\lambda$.
        momentum: $\mu$, or None for a step that remembers nothing.
        memory: the decay of the running mean $v$ of squared gradients, for $D = \sqrt v$ as in
            Adam; None for $D = I$.
        kl: the largest divergence of a step of the laws of trajectories, to second order
            (`eq:prelim_kl_expansion`), $\frac{1}{2N} \sum_i (z_i^\top \Delta)^2$, if any.
    """

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        phi, square = None if momentum is None else zeros, None if memory is None else zeros
        return Proximal(phi, square, jnp.array(0))

    def update(updates, state, params=None, *, fisher, step=0, **extra: Any):
        count, scale, centre, square = state.updates + 1, None, None, None
        if memory is not None:
            square = optax.tree_utils.tree_update_moment_per_elem_norm(
                updates, state.square, memory, 2
            )
            unbiased = optax.tree_utils.tree_bias_correction(square, memory, count)
            scale = jax.tree.map(lambda v: 1 / (jnp.sqrt(v) + 1e-8), unbiased)
        if momentum is not None:
            centre = jax.tree.map(lambda x: momentum * x, state.phi)
        phi, taken = proximal_step(fisher, at(damping, step), centre, scale)
        rate = 1.0 if momentum is None else 1.0 - momentum
        if kl is not None:
            scores = rate * fisher.batch.scores_along(phi, taken)
            rate = rate * shortened(jnp.mean(scores**2) / 2, kl)
        moved = jax.tree.map(lambda x: -rate * x, phi)
        return moved, Proximal(None if momentum is None else phi, square, count)

    return transformation(init, update)


def shortened(predicted: Float[Array, ""], limit: Scalar) -> Float[Array, ""]:
    """The factor at most 1 that brings the divergence of a step, a quadratic form, to `limit`."""
    long = predicted > limit
    return jnp.where(long, jnp.sqrt(limit / jnp.where(long, predicted, 1.0)), 1.0)


def limit_divergence(
    limit: Scalar, predict: Callable[..., Float[Array, ""]]
) -> optax.GradientTransformationExtraArgs:
    r"""Shorten a step until the divergence that it is predicted to cause is at most `limit`.

    Args:
        limit: the largest divergence.
        predict: from a step and the extra arguments of `update` to its divergence, a quadratic
            form.
    """

    def update(updates, state, params=None, **extra: Any):
        scale = shortened(predict(updates, **extra), limit)
        return jax.tree.map(lambda x: scale * x, updates), state

    return transformation(lambda _: optax.EmptyState(), update)


def divergence_in_fisher(
    updates: PyTree[Float[Array, "..."]], *, fisher: Fisher, **extra: Any
) -> Float[Array, ""]:
    r"""$\frac12 \Delta^\top F \Delta$, for a step of the forward policy."""
    pairs = zip(jax.tree.leaves(updates), jax.tree.leaves(fisher.mv(updates)), strict=True)
    return jnp.asarray(sum(jnp.vdot(x, y) for x, y in pairs) / 2)


def own_log_z(
    steps: optax.GradientTransformationExtraArgs, log_z: optax.GradientTransformation
) -> optax.GradientTransformationExtraArgs:
    r"""The same steps, but for $\log Z$, which has its own."""

    def init(params):
        return steps.init(params), log_z.init(params.log_z)

    def update(updates, state, params, **extra: Any):
        stepped, first = steps.update(updates, state[0], params, **extra)
        mine, second = log_z.update(updates.log_z, state[1], params.log_z)
        return eqx.tree_at(lambda flow: flow.log_z, stepped, mine), (first, second)

    return transformation(init, update)


def by_part(
    forward: optax.GradientTransformation,
    backward: optax.GradientTransformation,
    log_z: optax.GradientTransformation,
    states: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """One transformation for each part of a `Flow`."""
    parts = {"forward": forward, "backward": backward, "log_z": log_z, "states": states}
    parts = {name: optax.with_extra_args_support(part) for name, part in parts.items()}

    def init(params):
        return {name: part.init(getattr(params, name)) for name, part in parts.items()}

    def update(updates, state, params, **extra: Any):
        done = {
            name: part.update(getattr(updates, name), state[name], getattr(params, name), **extra)
            for name, part in parts.items()
        }
        stepped = type(updates)(**{name: value for name, (value, _) in done.items()})
        return stepped, {name: new for name, (_, new) in done.items()}

    return transformation(init, update)


def transformation(init: Any, update: Any) -> optax.GradientTransformationExtraArgs:
    """Optax types parameters as trees of arrays and knows no required extra arguments."""
    return optax.GradientTransformationExtraArgs(init, update)
