"""A batch of trajectories evaluated: lines 2 to 5 of `alg:natgrad_gflownet`."""

from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ..envs import AbstractEnv
from ..policies import AbstractPolicy, Flow, Visits
from ..sampling import (
    AbstractProposal,
    PathLogProbs,
    Trajectories,
    Weighting,
    joined,
    log_probs,
    own_part,
    summed,
    taken,
)
from .base import AbstractObjective, surplus
from .penalties import curvature, slope
from .tape import AbstractTape, Kept, record


class Batch(eqx.Module):
    r"""Residuals of a batch, their weights, and the way back to the parameters.

    Attributes:
        paths: the trajectories.
        probs: their log-probabilities.
        residuals: $\delta$, of each trajectory one or more (`AbstractObjective`).
        shares: what each residual counts in its trajectory.
        weights: $w_i = \nu(\tau_i) / \mu(\tau_i)$, of the objective.
        omega: $\omega_i = q_\theta(\tau_i) / \mu(\tau_i)$, of the Fisher.
        balance: the residual of trajectory balance of each trajectory, whatever the objective.
        objective: what was evaluated.
        push: $v \mapsto J v$, the change of every residual along a change of the parameters.
        pull: $x \mapsto J^\top x = \sum_i x_i \nabla \delta_i$.
        scores: $v \mapsto z_i^\top v$, the change of every $\log q_\theta(\tau_i)$ along a change
            of the forward policy.
        pull_scores: its transpose, $x \mapsto \sum_i x_i z_i$.
        tape: $J$ at a perceptron, where the rule asked.
        potential: $f(x_i)$, the gradient of a functional of the terminal law, if there is one.
    """

    paths: Trajectories
    probs: PathLogProbs
    residuals: Float[Array, " rows"]
    shares: Float[Array, " rows"]
    weights: Float[Array, " n"]
    omega: Float[Array, " n"]
    balance: Float[Array, " n"]
    objective: AbstractObjective
    push: Callable[[Flow], Float[Array, " rows"]]
    pull: Callable[[Float[Array, " rows"]], Flow]
    scores: Callable[[AbstractPolicy], Float[Array, " n"]]
    pull_scores: Callable[[Float[Array, " n"]], AbstractPolicy]
    tape: AbstractTape | None = None
    potential: Float[Array, " n"] | None = None

    @property
    def size(self) -> int:
        """How many trajectories."""
        return self.omega.size

    @property
    def loss(self) -> Float[Array, ""]:
        return self.loss_of(self.residuals)

    def loss_of(self, residuals: Float[Array, " rows"]) -> Float[Array, ""]:
        """What the loss would be with other residuals."""
        return self._each_row() @ jax.vmap(self.objective.penalty)(residuals) / self.size

    def gradient(self) -> Flow:
        r"""$\frac1N \sum_i w_i\, \ell'(\delta_i)\, \nabla \delta_i$: the estimators of line 5."""
        slopes = slope(self.objective.penalty, self.residuals)
        gradient = self.pull(self._each_row() * slopes / self.size)
        if self.potential is None:
            return gradient
        share = self.weights / jnp.sum(self.weights)
        centred = share * (self.potential - share @ self.potential)
        forward = jax.tree.map(jnp.add, gradient.forward, self.pull_scores(centred))
        return eqx.tree_at(lambda flow: flow.forward, gradient, forward)

    def scores_along(self, change: Flow, moved: Float[Array, " rows"]) -> Float[Array, " n"]:
        r"""$z_i^\top v$ along a change whose product $J v$ is known.

        Where nothing but the forward policy and $\log Z$ is trained, that is all it takes.
        """
        if self.tape is not None:
            return moved - change.log_z
        return self.scores(change.forward)

    def require_residuals_only(self, what: str) -> None:
        """Raise `ValueError` if there is more to the objective than its residuals."""
        if self.potential is not None:
            raise ValueError(
                f"{what} steps on residuals, and {type(self.objective).__name__} has more to it: "
                "use a rule that follows the gradient, such as Euclidean, Adam or Natural with a "
                "rate"
            )

    def least_squares_weights(self) -> Float[Array, " rows"]:
        r"""$w_i\, \ell'(\delta_i) / 2\delta_i$: the objective as a weighted sum of squares."""
        return self._each_row() * curvature(self.objective.penalty, self.residuals)

    def _each_row(self) -> Float[Array, " rows"]:
        """The weight of each residual: that of its trajectory times its share."""
        return (self.shares.reshape(-1, self.size) * self.weights).ravel()


def evaluate(
    objective: AbstractObjective,
    env: AbstractEnv,
    flow: Flow,
    paths: Trajectories,
    *,
    proposal: AbstractProposal,
    reference: AbstractProposal | None,
    weighting: Weighting,
    whole: bool = False,
) -> Batch:
    r"""Evaluate the objective on `paths`, which `proposal` drew.

    Several devices evaluate a part each, and the batch that all have is whole: what its functions
    return are sums over devices, or the parts of all.

    Args:
        objective: the residuals and the penalty on them.
        env: the environment.
        flow: the policies and $\log Z$.
        paths: trajectories.
        proposal: $\mu$, the law they were drawn from.
        reference: $\nu$, the law that the objective averages over; the proposal if None.
        weighting: how ratios of laws become weights.
        whole: whether the rule needs all of $J$, and not only a gradient.
    """
    visits, paths = paths.visits, replace(paths, visits=None)
    own = own_part(paths, axis=1)
    if visits is None and flow.forward.by_visits:
        before = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), own.before)
        visits = Visits.of(env, before, own.live.ravel())
    own = replace(own, visits=visits)
    delta, probs, push, pull = _linearised(objective, env, flow, own)
    tape = None
    if whole and objective.by_trajectory and visits is not None:
        tape = record(flow, own, visits, probs)
        if isinstance(tape, Kept):
            push, pull = tape.push, tape.pull
    own = replace(own, visits=None)
    mask = probs.actions > -jnp.inf

    def log_law(law: AbstractProposal) -> Float[Array, " n"]:
        return joined(jnp.sum(taken(law(probs.actions, mask), own), axis=0))

    def scores(v: AbstractPolicy) -> Float[Array, " n"]:
        if objective.by_trajectory:
            still = jax.tree.map(jnp.zeros_like, eqx.filter(flow, eqx.is_inexact_array))
            return push(eqx.tree_at(lambda f: f.forward, still, v))
        params, static = eqx.partition(flow.forward, eqx.is_inexact_array)

        def log_q(params):
            moved = eqx.tree_at(lambda f: f.forward, flow, eqx.combine(params, static))
            return log_probs(env, moved, own).forward

        return jax.jvp(log_q, (params,), (v,))[1]

    def pull_scores(x: Float[Array, " n"]) -> AbstractPolicy:
        like = eqx.filter(flow.forward, eqx.is_inexact_array)
        return summed(jax.linear_transpose(scores, like)(own_part(x))[0])

    log_mu = log_law(proposal)
    ones = jnp.ones_like(log_mu)
    return Batch(
        paths=paths,
        probs=joined(probs, axis=1),
        residuals=joined(delta),
        shares=objective.shares(paths).astype(delta.dtype),
        weights=ones if reference is None else weighting(log_law(reference) - log_mu),
        omega=weighting(joined(probs.forward) - log_mu),
        balance=joined(flow.log_z + surplus(env, own, probs)),
        objective=objective,
        push=lambda v: joined(push(v)),
        pull=lambda x: summed(pull(own_part(x))),
        scores=lambda v: joined(scores(v)),
        pull_scores=pull_scores,
        tape=tape,
        potential=objective.potential(env, flow, paths),
    )


def _linearised(
    objective: AbstractObjective, env: AbstractEnv, flow: Flow, paths: Trajectories
) -> tuple[Array, PathLogProbs, Callable, Callable]:
    params, static = eqx.partition(flow, eqx.is_inexact_array)

    def residuals(params):
        return objective.residuals(env, eqx.combine(params, static), paths)

    delta, push, probs = jax.linearize(residuals, params, has_aux=True)
    transpose = jax.linear_transpose(push, params)
    return delta, probs, push, lambda x: transpose(x)[0]


def residual_rows(
    env: AbstractEnv, flow: Flow, paths: Trajectories, probs: PathLogProbs
) -> Float[Array, "n p"]:
    r"""$\nabla \delta_i$ of trajectory balance, one row a trajectory, for any policy."""
    forward = _score(paths, probs.actions)
    logits = jax.vmap(jax.vmap(flow.backward))(paths.after)
    mask = jax.vmap(jax.vmap(env.backward_mask))(paths.after)
    backward = -_score(paths, flow.backward.log_probs(logits, mask))

    def along(policy, states, slopes):
        params, static = eqx.partition(policy, eqx.is_inexact_array)
        return jax.vjp(lambda params: eqx.combine(params, static).many(states), params)[1](slopes)[
            0
        ]

    def row(before, after, forward, backward):
        gradient = Flow(
            along(flow.forward, before, forward),
            along(flow.backward, after, backward),
            jnp.ones_like(flow.log_z),
        )
        return ravel_pytree(gradient)[0]

    return jax.vmap(row, in_axes=1)(paths.before, paths.after, forward, backward)


def _score(
    paths: Trajectories, log_probs: Float[Array, "times n actions"]
) -> Float[Array, "times n actions"]:
    r"""$e_a - \pi$ at every step, zero where padded."""
    taken = jax.nn.one_hot(paths.actions, log_probs.shape[-1], dtype=log_probs.dtype)
    return jnp.where(paths.live[..., None], taken - jnp.exp(log_probs), 0)
