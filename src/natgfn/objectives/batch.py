"""A batch of trajectories evaluated: lines 2 to 5 of `alg:natgrad_gflownet`."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ..envs.base import AbstractEnv
from ..policies import Flow, Tabular
from ..sampling import AbstractProposal, PathLogProbs, Trajectories, Weighting, taken
from .penalties import curvature, slope
from .trajectory_balance import TrajectoryBalance


class Batch(eqx.Module):
    r"""Residuals of a batch, their weights, and the way back to the parameters.

    Attributes:
        paths: the trajectories.
        probs: their log-probabilities.
        residuals: $\delta_i$.
        weights: $w_i = \nu(\tau_i) / \mu(\tau_i)$, of the objective.
        omega: $\omega_i = q_\theta(\tau_i) / \mu(\tau_i)$, of the Fisher.
        objective: what was evaluated.
        push: $v \mapsto J v$, the change of every residual along a change of the parameters.
        pull: $x \mapsto J^\top x = \sum_i x_i \nabla \delta_i$.
        rows: $J$ itself, for a network, unless it is too large.
    """

    paths: Trajectories
    probs: PathLogProbs
    residuals: Float[Array, " n"]
    weights: Float[Array, " n"]
    omega: Float[Array, " n"]
    objective: TrajectoryBalance
    push: Callable[[Flow], Float[Array, " n"]]
    pull: Callable[[Float[Array, " n"]], Flow]
    rows: Float[Array, "n p"] | None = None

    @property
    def size(self) -> int:
        return self.residuals.size

    @property
    def loss(self) -> Float[Array, ""]:
        return jnp.mean(self.weights * jax.vmap(self.objective.penalty)(self.residuals))

    def gradient(self) -> Flow:
        r"""$\frac1N \sum_i w_i\, \ell'(\delta_i)\, \nabla \delta_i$: the estimators of line 5."""
        return self.pull(self.weights * slope(self.objective.penalty, self.residuals) / self.size)

    def least_squares_weights(self) -> Float[Array, " n"]:
        r"""$w_i\, \ell'(\delta_i) / 2\delta_i$: the objective as a weighted sum of squares."""
        return self.weights * curvature(self.objective.penalty, self.residuals)


def evaluate(
    objective: TrajectoryBalance,
    env: AbstractEnv,
    flow: Flow,
    paths: Trajectories,
    *,
    proposal: AbstractProposal,
    reference: AbstractProposal | None,
    weighting: Weighting,
) -> Batch:
    r"""Evaluate the objective on `paths`, which `proposal` drew.

    Args:
        objective: the residuals and the penalty on them.
        env: the environment.
        flow: the policies and $\log Z$.
        paths: trajectories.
        proposal: $\mu$, the law they were drawn from.
        reference: $\nu$, the law that the objective averages over; the proposal if None.
        weighting: how ratios of laws become weights.
    """
    size = sum(x.size for x in jax.tree.leaves(eqx.filter(flow, eqx.is_inexact_array)))
    whole = isinstance(flow.forward, Tabular) or paths.actions.shape[1] * size > _MOST
    differentiate = _linearised if whole else _by_rows
    delta, probs, push, pull, rows = differentiate(objective, env, flow, paths)
    mask = probs.actions > -jnp.inf

    def log_law(law: AbstractProposal) -> Float[Array, " n"]:
        return jnp.sum(taken(law(probs.actions, mask), paths), axis=0)

    log_mu = log_law(proposal)
    omega = weighting(probs.forward - log_mu)
    weights = jnp.ones_like(delta) if reference is None else weighting(log_law(reference) - log_mu)
    return Batch(paths, probs, delta, weights, omega, objective, push, pull, rows)


_MOST = 2**26
"""Numbers in the rows of a batch, at most: a quarter of a gigabyte."""


def _linearised(
    objective: TrajectoryBalance, env: AbstractEnv, flow: Flow, paths: Trajectories
) -> tuple[Array, PathLogProbs, Callable, Callable, None]:
    params, static = eqx.partition(flow, eqx.is_inexact_array)

    def residuals(params):
        return objective.residuals(env, eqx.combine(params, static), paths)

    delta, push, probs = jax.linearize(residuals, params, has_aux=True)
    transpose = jax.linear_transpose(push, params)
    return delta, probs, push, lambda x: transpose(x)[0], None


def _by_rows(
    objective: TrajectoryBalance, env: AbstractEnv, flow: Flow, paths: Trajectories
) -> tuple[Array, PathLogProbs, Callable, Callable, Array]:
    delta, rows, probs = residual_rows(objective, env, flow, paths)
    _, unravel = ravel_pytree(eqx.filter(flow, eqx.is_inexact_array))
    return delta, probs, lambda v: rows @ ravel_pytree(v)[0], lambda x: unravel(x @ rows), rows


def residual_rows(
    objective: TrajectoryBalance, env: AbstractEnv, flow: Flow, paths: Trajectories
) -> tuple[Float[Array, " n"], Float[Array, "n p"], PathLogProbs]:
    r"""Residuals, their gradients one by one, and the log-probabilities behind them.

    A trajectory's residual depends on the logits along it alone: all rows together cost no
    more than the gradient of their sum.
    """
    params, static = eqx.partition(flow, eqx.is_inexact_array)

    def residual(params, path):
        alone = jax.tree.map(lambda x: x[:, None], path)
        delta, probs = objective.residuals(env, eqx.combine(params, static), alone)
        return delta[0], probs

    each = jax.vmap(jax.value_and_grad(residual, has_aux=True), in_axes=(None, 1))
    (delta, probs), gradients = each(params, paths)
    probs = PathLogProbs(
        jnp.swapaxes(probs.actions[:, :, 0], 0, 1),
        probs.steps[:, :, 0].T,
        probs.forward[:, 0],
        probs.backward[:, 0],
    )
    return delta, jax.vmap(lambda g: ravel_pytree(g)[0])(gradients), probs
