r"""The certificate of a policy in training: is the surrogate Fisher inside the guarantee?

The reference is the exact Fisher of the enumerated environment; the surrogate is what the
update rule makes of a fresh batch, drawn with a key of its own, so that looking changes nothing.
Tables have closed forms; networks are treated by `natgfn.certify.pencil`.
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
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float, PRNGKeyArray

from ..fisher import Fisher, Occupancy, Scalar
from ..objectives import Batch, Squared, TrajectoryBalance
from ..occupancy import Exact, Factorised, Sampled
from ..policies import Flow, Tabular, backward_table, forward_table
from ..sampling import OnPolicy
from ..solvers import score_gram
from ..statespace import StateSpace, exact_residuals, require_space
from ..train.algorithm import Algorithm, TrainState
from . import tabular
from .ceiling import ceiling, shared_rows
from .conditioning import directional_floor, promised_curvature
from .pencil import (
    Estimate,
    Inverse,
    Metric,
    Root,
    extreme_pairs,
    fisher_root,
    nystrom,
    relative_error_estimate,
)
from .surrogate import direction_limit

Vector = Float[Array, " p"]
Numbers = dict[str, Float[Array, ""]]


class Effort(NamedTuple):
    """How much a certificate may cost, where there is no closed form."""

    rank: int = 128
    """Of the preconditioner, and the most that the effective rank can be found to be; if zero,
    that of the states looked at."""
    states: int = 128
    """Looked at one by one, for a limit on the relative error."""
    iterations: int = 64
    """Of eigenvalue iterations and of linear solves, at most."""
    complete: bool = True
    """Whether to solve for directions and for the coupling of layers, too. Twenty updates buy that
    only where batches are large beside the environment, as 128 trajectories on a grid of side 4."""

    @classmethod
    def of_twenty_updates(cls, algorithm: Algorithm) -> "Effort":
        """What fits into the time of twenty updates of a network.

        An update is a latency and a pass over the batch at each step; a product of the
        exact Fisher is a pass over all states. The constants, in microseconds, were measured on
        grids with 240 to 65,025 states: only their ratios matter.
        """
        space = require_space(algorithm.env, "a certificate")
        update = space.max_steps * (5 + 0.4 * algorithm.batch)
        products = int(8 * update / (0.2 * space.num_inner))
        return cls(0, 24, min(max(products // 6, 2), 8), products >= 300)


def certify_states(
    algorithm: Algorithm,
    states: TrainState,
    effort: Effort | None = None,
    *,
    damping: float | None = None,
    batch: int | None = None,
) -> dict[str, Float[np.ndarray, " seeds"]]:
    """The certificate of every seed of a run.

    Without an effort it is made in float32 and takes the time of some twenty updates; with
    one, in float64. Damping and batch are the run's own unless given.
    """
    if batch is not None:
        algorithm = dataclasses.replace(algorithm, batch=batch)
    quick = Effort.of_twenty_updates(algorithm) if effort is None else effort
    value = None if damping is None else np.float32(damping)
    with jax.enable_x64(effort is not None):
        if effort is not None:
            algorithm, states = jax.tree.map(_widen, (algorithm, states))
        found = _certify_states(algorithm, states, value, quick)
        return {name: np.asarray(value) for name, value in found.items()}


def _widen(x):
    # A copy: see `metrics.evaluate`.
    return np.array(x, np.float64) if eqx.is_inexact_array(x) else x


@eqx.filter_jit
def _certify_states(algorithm: Algorithm, states: TrainState, damping: Any, effort: Effort):
    arrays, static = eqx.partition(states, eqx.is_array)

    def one_seed(arrays):
        state = eqx.combine(arrays, static)
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), _CERTIFY)
        return certificate(algorithm, state, key=key, effort=effort, damping=damping)

    return jax.lax.map(one_seed, arrays)


_CERTIFY = 0xCE
"""Sets the keys of certificates apart from those of training."""


def certificate(
    algorithm: Algorithm,
    state: TrainState,
    *,
    key: PRNGKeyArray,
    effort: Effort = Effort(),
    damping: Scalar | None = None,
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
        What costs more than `effort` allows is left out.
    """
    with jax.default_matmul_precision("highest"):
        own = algorithm.rule.metric()[1]
        return _certificate(algorithm, state, key, effort, own if damping is None else damping)


def _certificate(
    algorithm: Algorithm, state: TrainState, key: PRNGKeyArray, effort: Effort, damping: Scalar
) -> Numbers:
    space, flow = require_space(algorithm.env, "a certificate"), state.flow
    batch_key, other_key, start_key = jax.random.split(key, 3)
    batch = algorithm.draw(flow, batch_key)
    fisher = Fisher(space, flow.forward, Exact()(space, flow.forward))
    # The exact gradient, or at least one that the surrogate has not seen.
    is_table = isinstance(flow.forward, Tabular)
    h = exact_gradient(algorithm, flow, fisher) if is_table or effort.complete else None
    if h is None:
        h = ravel_pytree(algorithm.draw(flow, other_key).gradient().forward)[0]
    look = _look_at_table if is_table else _look_at_network
    numbers, reference, surrogate = look(
        Subject(algorithm, fisher, batch, h, start_key, effort, damping)
    )

    numbers["direction_limit"] = direction_limit(numbers["rho"] + numbers["rho_error"], 1.0)
    momentum = _momentum(state)
    direction = surrogate.solve(h)
    numbers["gradient_outside"] = _outside(surrogate.root, h, direction)
    if momentum is not None:
        numbers["momentum_outside"] = _outside(surrogate.root, momentum, surrogate.solve(momentum))
    if reference is not None:
        v = reference.solve(h)
        length = reference.root.norm(v, damping)
        numbers["direction_error"] = reference.root.norm(direction - v, damping) / length
        change = ravel_pytree(batch.gradient().forward)[0] - h
        size = jnp.sqrt(jnp.maximum(change @ reference.solve(change), 0.0))
        numbers["gradient_error"] = size / length
    return numbers


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
        occupancy = self.algorithm.rule.metric()[0] or Sampled()
        # With a batch, these may be given only where it needs them.
        if isinstance(occupancy, Exact):
            return self.fisher.occupancy
        if isinstance(occupancy, Factorised):
            return occupancy(self.algorithm.env, self.fisher.policy)
        return occupancy(self.algorithm.env, self.fisher.policy, self.batch)


class Look(NamedTuple):
    """What differs between tables and networks."""

    numbers: Numbers
    reference: Metric | None
    """The exact Fisher, if it may be solved with."""
    surrogate: Metric


def _look_at_table(subject: Subject) -> Look:
    """Closed forms, but for the metric of whole trajectories, which has no blocks."""
    fisher, effort, damping = subject.fisher, subject.effort, subject.damping
    space = require_space(subject.algorithm.env, "a certificate")
    blocks = tabular.blocks_of(fisher)
    exact = tabular.metric(blocks, damping)
    numbers = {
        "effective_rank": tabular.effective_rank(blocks, damping),
        "curvature_floor": promised_curvature(blocks.weights, blocks.probs),
    }
    if subject.algorithm.rule.metric()[0] is None:
        surrogate = trajectory_metric(space, subject.batch, damping)
        found = relative_error_estimate(
            exact.root,
            surrogate.root,
            damping,
            Inverse(exact.solve, exact.solve),
            key=subject.key,
            # Each extends the space by two vectors, that of a quick network by one.
            iterations=effort.iterations if effort.rank else effort.iterations // 2,
        )
        numbers |= {"rho": found.value, "rho_error": found.error}
        return Look(numbers, exact, surrogate)
    other = tabular.blocks_of(Fisher(space, fisher.policy, subject.visited()))
    rho = tabular.relative_error(blocks, other, damping)
    gamma = tabular.relative_error(other, blocks, damping)
    numbers |= {"rho": rho, "rho_error": jnp.zeros_like(rho), "gamma": gamma}
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
        pencil, damping, inverse, limit.start, effort.iterations, both=effort.rank > 0
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
    surrogate = Metric(
        root, _iterated(root, damping, effort.iterations * (2 if effort.rank else 1))
    )
    if not effort.complete:
        return Look(numbers, None, surrogate)
    # A product of all layer blocks costs as much as one of the Fisher for each layer.
    less = effort._replace(rank=max(effort.rank // 4, 2), iterations=max(effort.iterations // 2, 1))
    numbers["gamma"] = layer_coupling(fisher, damping, key=gamma_key, effort=less).value
    near = _iterated(pencil.fisher, damping, effort.iterations, inverse.near)
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
    leaves = jax.tree.leaves(eqx.filter(fisher.policy, eqx.is_inexact_array))
    sizes = jnp.array([x.size for x in leaves])
    layer = jnp.repeat(jnp.arange(len(leaves)), sizes, total_repeat_length=root.size)
    masks = (layer == jnp.arange(len(leaves))[:, None]).astype(leaves[0].dtype)
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


def trajectory_metric(space: StateSpace, batch: Batch, damping: Scalar) -> Metric:
    r"""$\frac1N \sum_i \omega_i z_i z_i^\top$, the metric of `optim.SampleSpace`, for tables."""
    scale = jnp.sqrt(batch.omega / batch.size)
    flat, unravel = ravel_pytree(batch.pull(batch.residuals).forward)
    pull = jax.linear_transpose(batch.scores, unravel(flat))

    def forward(x):
        return scale * batch.scores(unravel(x))

    def transpose(y):
        return ravel_pytree(pull(scale * y)[0])[0]

    gram = scale[:, None] * score_gram(space, batch) * scale
    factor = jsl.cho_factor(gram + damping * jnp.eye(batch.size), lower=True)
    return Metric(
        Root(forward, transpose, flat.size),
        lambda x: (x - transpose(jsl.cho_solve(factor, forward(x)))) / damping,
    )


def _iterated(root: Root, damping: Scalar, iterations: int, near: Any = None) -> Callable:
    """Conjugate gradients, with so many steps at most."""

    def product(x):
        return root.mv(x) + damping * x

    return lambda x: cg(product, x, tol=1e-4, maxiter=iterations, M=near)[0]


def _momentum(state: TrainState) -> Vector | None:
    """The running mean of gradients of the forward policy, if the optimiser has one."""
    optimiser = state.optimiser
    if isinstance(optimiser, dict):
        optimiser = optimiser["forward"]
    for name in ("mu", "trace"):
        found = optax.tree_utils.tree_get(optimiser, name)
        if found is not None:
            return ravel_pytree(found)[0]
    return None


def _outside(root: Root, x: Vector, solution: Vector) -> Float[Array, ""]:
    """The share of `x` that is not in the range of an operator, from its damped solution.

    With too few iterations for the solution, it is too large rather than too small.
    """
    size = jnp.linalg.norm(x)
    rest = jnp.linalg.norm(x - root.mv(solution))
    return jnp.where(size > 0, jnp.minimum(rest / jnp.where(size > 0, size, 1.0), 1.0), 0.0)
