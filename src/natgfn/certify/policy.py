r"""The certificate of a policy in training: is the surrogate Fisher inside the guarantee?

The reference is the exact Fisher of the enumerated environment, or, where states cannot be
enumerated, one of many more trajectories than a batch has (`natgfn.certify.sampled`), with an
error of its own. The surrogate is what the update rule makes of a fresh batch. Both are drawn with
keys of their own, so that looking changes nothing. Tables have closed forms; networks are treated
by `natgfn.certify.pencil`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..algorithm import Algorithm, TrainState, of_seed
from ..envs import AbstractEnv, Assignments
from ..fisher import Fisher, Occupancy, Scalar, score_gram
from ..objectives import Batch, Squared, TrajectoryBalance, expected
from ..occupancy import Exact, Factorised, Separators, Trajectories
from ..optim import at
from ..policies import (
    AbstractPolicy,
    Flow,
    Tabular,
    backward_table,
    contexts_of,
    forward_table,
)
from ..sampling import OnPolicy
from ..statespace import StateSpace, exact_residuals, require_space
from . import tabular
from .ceiling import ceiling, shared_rows
from .conditioning import directional_floor, promised_curvature
from .effort import Effort, Look, Numbers, Vector
from .inverses import SOLVED, Inverse, Metric, conjugate_gradients, nystrom
from .loops import one_by_one
from .operators import Product, Root, fisher_root
from .pencil import Estimate, extreme_pairs, relative_error_estimate
from .sampled import draw, layers, look_at_visits, sampled_fisher
from .structured import errors_of
from .surrogate import direction_limit


def certify_states(
    algorithm: Algorithm,
    states: TrainState,
    effort: Effort | None = None,
    *,
    damping: float | None = None,
    batch: int | None = None,
    tell: Callable[[], None] | None = None,
) -> dict[str, Float[np.ndarray, " seeds"]]:
    """The certificate of every seed of a run, with the numbers that all of them have.

    Without an effort it is made in float32 and takes the time of some twenty updates, or more
    where the reference is sampled; with one, in float64. Damping and batch are the run's own
    unless given. With an effort, `tell` is called after each product of a sampled reference.
    """
    if batch is not None:
        algorithm = dataclasses.replace(algorithm, batch=batch)
    quick = Effort.of_twenty_updates(algorithm) if effort is None else effort
    value = None if damping is None else jnp.float32(damping)
    seeds = [of_seed(states, seed) for seed in range(len(states.step))]
    with jax.enable_x64(effort is not None):
        if effort is not None:
            algorithm, states, seeds = jax.tree.map(_widen, (algorithm, states, seeds))
        exact = is_structured(algorithm.env, states.flow.forward)
        if effort is None or exact or isinstance(algorithm.env, StateSpace):
            found = _certify_states(algorithm, states, value, quick)
        else:
            each = [_certify_seed(algorithm, state, value, quick, tell) for state in seeds]
            found = {name: jnp.stack([numbers[name] for numbers in each]) for name in each[0]}
        numbers = {name: np.asarray(value) for name, value in found.items()}
    return {name: value for name, value in numbers.items() if not np.isnan(value).any()}


def _widen(x):
    if not eqx.is_inexact_array(x):
        return x
    copy = np.array(x, np.float64)  # see `metrics.evaluate`
    return jnp.asarray(copy) if isinstance(x, jax.Array) else copy


def is_structured(env: AbstractEnv, policy: AbstractPolicy) -> bool:
    """Whether the exact Fisher is known without a list of states: of a table of contexts."""
    has_tree = isinstance(env, Assignments) and env.tree is not None
    return has_tree and isinstance(policy, Tabular) and policy.contexts is not None


def reference_of(algorithm: Algorithm, policy: AbstractPolicy, effort: Effort = Effort()) -> str:
    """What a certificate of a policy compares with, in words."""
    if isinstance(algorithm.env, StateSpace):
        return "exact"
    if is_structured(algorithm.env, policy):
        return "exact, by messages"
    num = effort.trajectories(algorithm)
    return f"sampled from {num:,} trajectories ({effort.reference} batches)"


@eqx.filter_jit
def _certify_states(algorithm: Algorithm, states: TrainState, damping: Any, effort: Effort):
    arrays, static = eqx.partition(states, eqx.is_array)

    def one_seed(arrays):
        return _certify_seed(algorithm, eqx.combine(arrays, static), damping, effort)

    return jax.lax.map(one_seed, arrays)


def _certify_seed(
    algorithm: Algorithm,
    state: TrainState,
    damping: Any,
    effort: Effort,
    tell: Callable[[], None] | None = None,
) -> Numbers:
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), _CERTIFY)
    return certificate(algorithm, state, key=key, effort=effort, damping=damping, tell=tell)


_CERTIFY = 0xCE
"""Sets the keys of certificates apart from those of training."""


def certificate(
    algorithm: Algorithm,
    state: TrainState,
    *,
    key: PRNGKeyArray,
    effort: Effort = Effort(),
    damping: Scalar | None = None,
    tell: Callable[[], None] | None = None,
) -> Numbers:
    r"""Certify the update rule of a run at its present policy, with its own damping unless given.

    Returns:
        `rho`, $\rho_\lambda$ of the surrogate, with `rho_error`, how far above it the truth
        can be; `direction_limit`, the relative direction error that
        `thm:structure_dependent_approx` allows for it (infinite outside the guarantee), and
        `direction_error`, the true one for the exact gradient; `gradient_error`, of the
        batch's gradient in the norm of $F_\lambda^{-1}$, relative; `gamma`,
        $\gamma_{B,\lambda}$ of the surrogate in a table, of layer blocks in a network;
        `effective_rank`, $\mathrm{tr}\, F F_\lambda^{-1}$ (for a network a lower bound);
        `curvature_floor`, what `prop:gflownet_fisher_conditioning` promises, for a network
        along the gradient; and `gradient_outside` and `momentum_outside`, the share of the
        gradient and of the optimiser's momentum that the surrogate does not see,
        $\|x - \widetilde F \widetilde F_\lambda^{-1} x\| / \|x\|$, for a network from above.
        Where the reference is sampled, all of this is against that reference and the gradient
        of as many trajectories (of one more batch, unless `effort` is complete), and
        `reference_error` is the error of the reference itself (see `natgfn.certify.sampled`).
        Where `effort` does not suffice for convergence, `rho_error` is infinite,
        `reference_error` and `gamma` are from below, and `direction_error` and
        `gradient_error` are NaN: their linear systems were not solved.

        What costs more than `effort` allows is left out.
    """
    with jax.default_matmul_precision("highest"):
        own = at(algorithm.rule.metric()[1], state.step)
        value = own if damping is None else damping
        return _certificate(algorithm, state, key, effort, value, tell)


def _certificate(
    algorithm: Algorithm,
    state: TrainState,
    key: PRNGKeyArray,
    effort: Effort,
    damping: Scalar,
    tell: Callable[[], None] | None,
) -> Numbers:
    env, flow = algorithm.env, state.flow
    batch_key, other_key, start_key = jax.random.split(key, 3)
    options = {"key": start_key, "effort": effort, "damping": damping}
    structured = is_structured(env, flow.forward)
    is_sampled = not (structured or isinstance(env, StateSpace))
    if is_sampled:
        fisher_key, gradient_key = jax.random.split(other_key)
        fisher = sampled_fisher(env, flow.forward, effort.trajectories(algorithm), key=fisher_key)
        noisy, visited = draw(algorithm, flow, batch_key)
        keys = jax.random.split(gradient_key, effort.reference if effort.complete else 1)
        each = one_by_one(lambda key: draw(algorithm, flow, key).gradient, keys)
        h, noisy = _scaled(jnp.mean(each, axis=0), noisy)
        look = look_at_visits(fisher, visited, h, **options, tell=tell)
    else:
        batch = algorithm.draw(flow, batch_key)
        occupancy = Separators() if structured else Exact()
        fisher = Fisher(env, flow.forward, occupancy(env, flow.forward))
        is_table = isinstance(flow.forward, Tabular)
        # The exact gradient, or at least one that the surrogate has not seen.
        if structured:
            h = ravel_pytree(expected(TrajectoryBalance(), env, flow).gradient().forward)[0]
        else:
            h = exact_gradient(algorithm, flow, fisher) if is_table or effort.complete else None
        if h is None:
            h = _gradient(algorithm.draw(flow, other_key))
        h, noisy = _scaled(h, _gradient(batch))
        subject = Subject(algorithm, fisher, batch, h, **options)
        look = _look_at_table(subject) if is_table else _look_at_network(subject)

    numbers, reference, surrogate = look
    numbers["direction_limit"] = direction_limit(numbers["rho"] + numbers["rho_error"], 1.0)
    direction = surrogate.solve(h)
    numbers["gradient_outside"] = _outside(surrogate.root, h, direction)
    momentum = _momentum(state)
    if momentum is not None:
        (x,) = _scaled(momentum)
        numbers["momentum_outside"] = _outside(surrogate.root, x, surrogate.solve(x))
    if reference is not None:
        v, change = reference.solve(h), noisy - h
        length = reference.root.norm(v, damping)
        moved = reference.solve(change)
        size = jnp.sqrt(jnp.maximum(change @ moved, 0.0))
        found = {
            "direction_error": reference.root.norm(direction - v, damping) / length,
            "gradient_error": size / length,
        }
        if is_sampled:
            aim = _is_solved(reference, damping, h, v)
            solved = {
                "direction_error": aim & _is_solved(surrogate, damping, h, direction),
                "gradient_error": aim & _is_solved(reference, damping, change, moved),
            }
            found = {name: jnp.where(solved[name], x, jnp.nan) for name, x in found.items()}
        numbers |= found
    return numbers


def _gradient(batch: Batch) -> Vector:
    """That of the forward policy."""
    return ravel_pytree(batch.gradient().forward)[0]


def _scaled(x: Vector, *others: Vector) -> list[Vector]:
    """Vectors times the power of two that brings the first to the order of one.

    Nothing here depends on the scale of a gradient, but the squares of a tiny one, as those of a
    policy that has collapsed, are zero in float32.
    """
    _, exponent = jnp.frexp(jnp.max(jnp.abs(x)))
    return [jnp.ldexp(each, -exponent) for each in (x, *others)]


def _is_solved(metric: Metric, damping: Scalar, b: Vector, x: Vector) -> Bool[Array, ""]:
    """Whether a solution is one, by a product of its own."""
    left = jnp.linalg.norm(metric.root.mv(x) + damping * x - b)
    return left <= 2 * SOLVED * jnp.linalg.norm(b)


class Subject(NamedTuple):
    """What is certified, and how."""

    algorithm: Algorithm
    fisher: Fisher
    batch: Batch
    gradient: Vector
    key: PRNGKeyArray
    effort: Effort
    damping: Scalar

    def visited(self) -> Occupancy:
        """Where the surrogate goes; that of whole trajectories of a network, step by step."""
        occupancy = self.algorithm.rule.metric()[0]
        # With a batch, these may be given only where it needs them.
        if isinstance(occupancy, Exact) and self.fisher.occupancy.complete:
            return self.fisher.occupancy
        if isinstance(occupancy, Exact | Factorised):
            return occupancy(self.algorithm.env, self.fisher.policy)
        return occupancy(self.algorithm.env, self.fisher.policy, self.batch)


def _look_at_table(subject: Subject) -> Look:
    """Closed forms, but for the metric of whole trajectories, which has no blocks."""
    fisher, effort, damping = subject.fisher, subject.effort, subject.damping
    blocks = tabular.blocks_of(fisher)
    exact = tabular.metric(blocks, damping)
    numbers = {
        "effective_rank": tabular.effective_rank(blocks, damping),
        "curvature_floor": promised_curvature(blocks.weights, blocks.probs),
    }
    if isinstance(subject.algorithm.rule.metric()[0], Trajectories):
        surrogate = trajectory_metric(fisher, subject.batch, damping)
        assert isinstance(exact.root, Root)
        assert isinstance(surrogate.root, Root)
        found = relative_error_estimate(
            exact.root,
            surrogate.root,
            damping,
            Inverse(exact.solve, exact.solve),
            key=subject.key,
            # Each extends the space by two vectors, that of a quick network by one.
            iterations=effort.sides * effort.iterations // 2,
        )
        numbers |= {"rho": found.value, "rho_error": found.error}
        return Look(numbers, exact, surrogate)
    other = tabular.blocks_of(Fisher(fisher.env, fisher.policy, subject.visited()))
    rho = tabular.relative_error(blocks, other, damping)
    gamma = tabular.relative_error(other, blocks, damping)
    numbers |= {"rho": rho, "rho_error": jnp.zeros_like(rho), "gamma": gamma}
    if is_structured(fisher.env, fisher.policy) and other.mass is None:
        errors = errors_of(contexts_of(fisher.policy), blocks, other, damping)
        numbers |= {"occupancy_error": jnp.max(errors.occupancy), "rho_limit": errors.relative}
    return Look(numbers, exact, tabular.metric(other, damping))


def _look_at_network(subject: Subject) -> Look:
    """Without a matrix, but for the rows of a few states."""
    _, fisher, _, h, key, effort, damping = subject
    visited = subject.visited()
    sketch_key, gamma_key = jax.random.split(key)
    pencil = shared_rows(fisher, visited)
    limit = ceiling(fisher, pencil, damping, effort.states)
    inverse, rank = limit.inverse, limit.effective_rank
    if effort.rank:
        sketch = nystrom(pencil.fisher, effort.rank, sketch_key)
        inverse = sketch.inverse(damping)
        rank = jnp.maximum(rank, jnp.sum(sketch.values / (sketch.values + damping)))
    found = extreme_pairs(
        pencil, damping, inverse, limit.start, effort.iterations, both=effort.sides == 2
    )
    size = jnp.maximum(jnp.linalg.norm(h), jnp.finfo(h.dtype).tiny)
    _, unravel = ravel_pytree(eqx.filter(fisher.policy, eqx.is_inexact_array))
    numbers = {
        "rho": found.value,
        # Rounding may lift the quotient above the limit.
        "rho_error": jnp.maximum(jnp.minimum(found.error, limit.value - found.value), 0.0),
        "effective_rank": rank,
        "curvature_floor": jnp.asarray(directional_floor(fisher, unravel(h / size)).value),
    }
    root = pencil.surrogate
    if len(visited.weights) < len(fisher.occupancy.weights):
        root = fisher_root(Fisher(fisher.env, fisher.policy, visited))
    steps = effort.sides * effort.iterations
    surrogate = Metric(root, conjugate_gradients(root, damping, steps))
    if not effort.complete:
        return Look(numbers, None, surrogate)
    coupling = layer_coupling(fisher, damping, key=gamma_key, effort=effort.less())
    numbers["gamma"] = coupling.value
    near = conjugate_gradients(pencil.fisher, damping, effort.iterations, inverse.near)
    return Look(numbers, Metric(pencil.fisher, near), surrogate)


def exact_gradient(algorithm: Algorithm, flow: Flow, fisher: Fisher) -> Vector | None:
    """The forward gradient of squared, on-policy trajectory balance without noise; else None."""
    objective, on_policy = algorithm.objective, isinstance(algorithm.proposal, OnPolicy)
    usual = isinstance(objective, TrajectoryBalance) and isinstance(objective.penalty, Squared)
    if not (usual and on_policy and algorithm.reference is None):
        return None
    space = require_space(algorithm.env, "an exact gradient")
    log_pf, log_pb = forward_table(space, flow.forward), backward_table(space, flow.backward)
    slopes = exact_residuals(space, log_pf, log_pb, flow.log_z).score_gradient
    if isinstance(flow.forward, Tabular):
        return slopes.ravel()
    return ravel_pytree(fisher.linearise().pull(slopes))[0]


def layer_coupling(
    fisher: Fisher, damping: Scalar, *, key: PRNGKeyArray, effort: Effort = Effort()
) -> Estimate:
    r"""$\gamma_{B,\lambda}$ of the blocks of a network's layers: one for each array.

    A block's root acts on the parameters of that array alone, so the roots of all blocks
    stacked are the root of $B$.
    """
    root = fisher_root(fisher)
    masks = layers(fisher.policy)
    rows = jax.eval_shape(root.forward, jnp.zeros(root.size)).size
    blocks = Root(
        lambda x: jax.lax.map(root.forward, masks * x).ravel(),
        lambda y: jnp.sum(masks * jax.lax.map(root.transpose, y.reshape(-1, rows)), axis=0),
        root.size,
    )
    sketch_key, start_key = jax.random.split(key)
    inverse = nystrom(blocks, effort.rank, sketch_key).inverse(damping)
    return relative_error_estimate(
        blocks, root, damping, inverse, key=start_key, iterations=effort.iterations
    )


def trajectory_metric(fisher: Fisher, batch: Batch, damping: Scalar) -> Metric:
    r"""$\frac1N \sum_i \omega_i z_i z_i^\top$, the metric of `optim.SampleSpace`, for tables."""
    scale = jnp.sqrt(batch.omega / batch.size)
    flat, unravel = ravel_pytree(batch.pull(batch.residuals).forward)
    pull = jax.linear_transpose(batch.scores, unravel(flat))

    def forward(x):
        return scale * batch.scores(unravel(x))

    def transpose(y):
        return ravel_pytree(pull(scale * y)[0])[0]

    gram = scale[:, None] * score_gram(fisher.env, fisher.policy, batch) * scale
    factor = jsl.cho_factor(gram + damping * jnp.eye(batch.size), lower=True)
    return Metric(
        Root(forward, transpose, flat.size),
        lambda x: (x - transpose(jsl.cho_solve(factor, forward(x)))) / damping,
    )


def _momentum(state: TrainState) -> Vector | None:
    """The running mean of gradients of the forward policy, if the optimiser has one."""
    parameters = eqx.filter(state.flow.forward, eqx.is_inexact_array)
    optimiser = state.optimiser
    if isinstance(optimiser, dict):
        optimiser = optimiser["forward"]
    for name in ("mu", "trace"):
        found = optax.tree_utils.tree_get(optimiser, name)
        # That of log Z alone, where it has a step of its own, is not meant.
        if found is not None and jax.tree.structure(found) == jax.tree.structure(parameters):
            return ravel_pytree(found)[0]
    return None


def _outside(root: Root | Product, x: Vector, solution: Vector) -> Float[Array, ""]:
    """The share of `x` that is not in the range of an operator, from its damped solution.

    With too few iterations for the solution, it is too large rather than too small.
    """
    size = jnp.linalg.norm(x)
    rest = jnp.linalg.norm(x - root.mv(solution))
    return jnp.where(size > 0, jnp.minimum(rest / jnp.where(size > 0, size, 1.0), 1.0), 0.0)
