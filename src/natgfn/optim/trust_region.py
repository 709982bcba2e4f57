r"""Steps no longer than a model of them can be trusted, as optax transformations.

A bound on the norm of a step is `optax.clip_by_global_norm` after it. The two here look at what
a step does: to the policy, and to the loss.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from ..fisher import Fisher, Scalar
from ..policies import AbstractPolicy, masked_log_softmax
from ..solvers import on_live_rows
from .natural import transformation


class TrustRegion(NamedTuple):
    """What `kl_trust_region` did to the last step."""

    divergence: Float[Array, ""]
    """Of the step that was taken."""
    scale: Float[Array, ""]
    """How much of the proposed step that was."""
    refused: Int[Array, ""]
    """How many steps so far could not be made short enough, and were not taken."""


def kl_trust_region(
    limit: Scalar, shrink: Scalar = 0.5, tries: int = 8, *, statewise: bool = False
) -> optax.GradientTransformationExtraArgs:
    r"""Shorten the step $\Delta$ of the forward policy until
    $$\sum_s d(s)\, \mathrm{KL}(\pi_\theta(\cdot \mid s)\, \|\, \pi_{\theta + \Delta}(\cdot \mid s))
    \le \varepsilon.$$

    With the exact occupancy this is the divergence of the laws of trajectories. It is measured,
    not predicted: $\Delta$ is first scaled by $\sqrt{\varepsilon / \mathrm{KL}}$, which would do
    if the divergence were quadratic, then by `shrink` as often as it takes. It belongs after
    everything that changes a step; `update` takes `fisher`, for its occupancy.

    Args:
        limit: $\varepsilon$.
        shrink: the factor of each further attempt.
        tries: further attempts; when all fail, the step is zero.
        statewise: whether to bound the largest divergence in a state that counts, instead of
            the sum.
    """

    def init(params):
        zero = jnp.zeros((), jnp.result_type(*jax.tree.leaves(params)))
        return TrustRegion(zero, zero + 1, jnp.array(0))

    def update(updates, state, params=None, *, fisher, **extra: Any):
        def shorten(fisher):
            def measure(scale):
                moved = eqx.apply_updates(fisher.policy, jax.tree.map(lambda x: scale * x, updates))
                weights, found = fisher.occupancy.weights, divergences(fisher, moved)
                if statewise:
                    return jnp.max(jnp.where(weights != 0, found, 0))
                return weights @ found

            def too_long(carry):
                attempt, _, measured = carry
                return ~(measured <= limit) & (attempt <= tries)

            def attempt(carry):
                number, scale, measured = carry
                quadratic = (number == 0) & jnp.isfinite(measured)
                scale = scale * jnp.where(quadratic, jnp.sqrt(limit / measured), shrink)
                return number + 1, scale, measure(scale)

            whole = jnp.ones_like(state.scale)
            carry = jnp.array(0), whole, measure(whole)
            _, scale, measured = jax.lax.while_loop(too_long, attempt, carry)
            good = measured <= limit
            scale = jnp.where(good, scale, 0)
            return TrustRegion(jnp.where(good, measured, 0), scale, state.refused + ~good)

        after = on_live_rows(shorten, fisher)
        return jax.tree.map(lambda x: after.scale * x, updates), after

    return transformation(init, update)


def divergences(fisher: Fisher, moved: AbstractPolicy) -> Float[Array, " n"]:
    r"""$\mathrm{KL}(\pi \| \pi')$ in every state of the occupancy.

    Small changes $u = \log \pi'_a / \pi_a$ enter as $\pi_a (e^u - 1 - u)$, which sums to the same
    and keeps its digits in float32.
    """
    states, live = fisher.occupancy.states, fisher.occupancy.weights != 0
    mask = jax.vmap(fisher.env.forward_mask)(states)
    old, new = (
        masked_log_softmax(policy.many(states, live), mask) for policy in (fisher.policy, moved)
    )
    p, q, u = jnp.exp(old), jnp.exp(new), jnp.where(mask, new - old, 0)
    return jnp.sum(jnp.where(jnp.abs(u) < 1, p * (jnp.expm1(u) - u), q - p - p * u), axis=1)


class LevenbergMarquardt(NamedTuple):
    """What `levenberg_marquardt` remembers."""

    damping: Float[Array, ""]
    """Of the next step."""
    ratio: Float[Array, ""]
    """Of the last step: what the loss lost to what it should have lost."""
    steps: PyTree


def levenberg_marquardt(
    steps: Callable[[Scalar], optax.GradientTransformationExtraArgs],
    damping: Scalar,
    least: float = 1e-8,
    most: float = 1e8,
) -> optax.GradientTransformationExtraArgs:
    r"""Steps whose damping follows how well the residuals are linear (Martens, 2010).

    For a step $\Delta$ of a whole `Flow`, the loss $\frac1N \sum_i w_i\, \ell(\delta_i)$ of the
    batch should become that of $\delta + J \Delta$, and becomes that of
    $\delta(\theta + \Delta)$. Where the ratio of the actual to the predicted decrease is below
    1/4, the damping is multiplied by 3/2, and where it is above 3/4, by 2/3. A step that should
    not decrease the loss, or makes it infinite, has ratio zero.

    `update` takes `env`, `flow` and `batch`, besides what the steps take.

    Args:
        steps: from a damping to the transformation.
        damping: of the first step.
        least: damping.
        most: damping.
    """

    def init(params):
        start = jnp.asarray(damping, float)
        return LevenbergMarquardt(start, jnp.zeros_like(start), steps(damping).init(params))

    def update(updates, state, params=None, *, env, flow, batch, **extra: Any):
        extra = {"env": env, "flow": flow, "batch": batch, **extra}
        step, after = steps(state.damping).update(updates, state.steps, params, **extra)
        moved = eqx.apply_updates(flow, step)
        after_it = batch.objective.residuals(env, moved, batch.paths)[0]
        actual = batch.loss - batch.loss_of(after_it)
        predicted = batch.loss - batch.loss_of(batch.residuals + batch.push(step))
        sound = (predicted > 0) & jnp.isfinite(actual)
        ratio = jnp.where(sound, actual / jnp.where(sound, predicted, 1), 0)
        factor = jnp.where(ratio < 1 / 4, 3 / 2, jnp.where(ratio > 3 / 4, 2 / 3, 1))
        changed = jnp.clip(factor * state.damping, least, most)
        return step, LevenbergMarquardt(changed, ratio.astype(state.ratio.dtype), after)

    return transformation(init, update)
