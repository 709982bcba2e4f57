r"""The certificate of a policy in training: is the surrogate Fisher inside the guarantee?

The reference is the exact Fisher of the enumerated environment, or, where states cannot be
enumerated, one of many more trajectories than a batch has (`sampled_fisher`), with an error of its
own. The surrogate is what the update rule makes of a fresh batch. Both are drawn with keys of their
own, so that looking changes nothing. Tables have closed forms; networks are treated by
`natgfn.certify.pencil`.

**The error of a sampled reference.** Let $A$ and $B$ be the Fishers of the two halves of its $n$
trajectories and $\hat F = (A + B) / 2$ that of all. The error $\hat F - F$ is not known, but
$A - \hat F = (A - B) / 2$ has the same mean, zero, and the same covariance: that of one trajectory
over $n$. So $\varepsilon = \rho_\lambda$ of a half against the whole is what the error of the whole
is likely to be, and falls as $1 / \sqrt n$ (`prop:appendix_mc_regime`). If that were the error,
$\pm(\hat F - F) \preceq \varepsilon \hat F_\lambda$, then by $F_\lambda \succeq (1 - \varepsilon)
\hat F_\lambda$ the $\rho_\lambda$ against $F$ would lie between
$(\rho - \varepsilon) / (1 + \varepsilon)$ and $(\rho + \varepsilon) / (1 - \varepsilon)$. As
$A \preceq 2 \hat F$, $\varepsilon$ is at most one: near one, there are directions that only one
half has seen, and so perhaps others that none has; the reference is too small for this damping.
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

from ..algorithm import Algorithm, TrainState
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
from ..sampling import OnPolicy, rollout
from ..solvers import on_live_rows
from ..statespace import StateSpace, exact_residuals, require_space
from . import tabular
from .ceiling import ceiling, shared_rows
from .conditioning import directional_floor, promised_curvature
from .pencil import (
    Estimate,
    Inverse,
    Metric,
    Product,
    Products,
    Root,
    excess,
    extreme_pairs,
    fisher_root,
    nystrom,
    random_rows,
    relative_error_estimate,
    rows_inverse,
    rows_rank,
    visits_product,
)
from .structured import errors_of
from .surrogate import direction_limit

Vector = Float[Array, " p"]
Numbers = dict[str, Float[Array, ""]]


class Effort(NamedTuple):
    """How much a certificate may cost, where there is no closed form."""

    rank: int = 128
    """Products of the reference that make the preconditioner: its rank, and the largest effective
    rank that can be found. Zero for a preconditioner from the states below, without products."""
    states: int = 128
    """States whose rows are looked at one by one: for a limit on the relative error, and where the
    reference is sampled, to begin the search."""
    iterations: int = 64
    """Of eigenvalue iterations and of linear solves, at most."""
    complete: bool = True
    """Whether to solve for directions and for the coupling of layers, too. Twenty updates buy that
    only where batches are large beside the environment, as 128 trajectories on a grid of side 4."""
    reference: int = 16
    """Trajectories of the reference, in batches of the run, where the environment is not
    enumerated."""

    @classmethod
    def of_twenty_updates(cls, algorithm: Algorithm) -> "Effort":
        """What fits into the time of twenty updates of a network.

        An update is a latency and a pass over the batch at each step; a product of the
        exact Fisher is a pass over all states. The constants, in microseconds, were measured on
        grids with 240 to 65,025 states: only their ratios matter.

        A product of a sampled reference is a pass over as many batches as that has, so
        only the least is done: eight products. As updates evaluate padding and products do
        not, that takes 15 updates where trajectories are short, and the more the longer they
        are: 30 to 60 where they have 20 steps of 153.
        """
        space = algorithm.env
        if not isinstance(space, StateSpace):
            return cls(0, 64, 2, complete=False)
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

    Without an effort it is made in float32 and takes the time of some twenty updates, or more
    where the reference is sampled; with one, in float64. Damping and batch are the run's own
    unless given.
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


def reference_of(algorithm: Algorithm, policy: AbstractPolicy, effort: Effort = Effort()) -> str:
    """What a certificate of a policy compares with, in words."""
    if isinstance(algorithm.env, StateSpace):
        return "exact"
    if is_structured(algorithm.env, policy):
        return "exact, by messages"
    num = _trajectories(algorithm, effort)
    return f"sampled from {num:,} trajectories ({effort.reference} batches)"


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
        Where the reference is sampled, all of this is against that reference and the gradient
        of as many trajectories (of one more batch, unless `effort` is complete), and
        `reference_error` is the error of the reference itself (see the module), from below
        where `effort` does not suffice for convergence.

        What costs more than `effort` allows is left out.
    """
    with jax.default_matmul_precision("highest"):
        own = at(algorithm.rule.metric()[1], state.step)
        return _certificate(algorithm, state, key, effort, own if damping is None else damping)


def _certificate(
    algorithm: Algorithm, state: TrainState, key: PRNGKeyArray, effort: Effort, damping: Scalar
) -> Numbers:
    env, flow = algorithm.env, state.flow
    batch_key, other_key, start_key = jax.random.split(key, 3)
    batch = algorithm.draw(flow, batch_key)
    # The exact gradient, or at least one that the surrogate has not seen.
    if isinstance(env, StateSpace):
        fisher = Fisher(env, flow.forward, Exact()(env, flow.forward))
        is_table = isinstance(flow.forward, Tabular)
        h = exact_gradient(algorithm, flow, fisher) if is_table or effort.complete else None
        if h is None:
            h = _gradient(algorithm, flow, other_key)
        look = _look_at_table if is_table else _look_at_network
    elif is_structured(env, flow.forward):
        fisher = Fisher(env, flow.forward, Separators()(env, flow.forward))
        h = ravel_pytree(expected(TrajectoryBalance(), env, flow).gradient().forward)[0]
        look = _look_at_table
    else:
        other_key, gradient_key = jax.random.split(other_key)
        num = _trajectories(algorithm, effort)
        fisher = sampled_fisher(env, flow.forward, num, key=other_key)
        keys = jax.random.split(gradient_key, effort.reference if effort.complete else 1)
        each = jax.lax.map(lambda key: _gradient(algorithm, flow, key), keys)
        h, look = jnp.mean(each, axis=0), _look_at_visits
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


def is_structured(env: AbstractEnv, policy: AbstractPolicy) -> bool:
    """Whether the exact Fisher is known without a list of states: of a table of contexts."""
    has_tree = isinstance(env, Assignments) and env.tree is not None
    return has_tree and isinstance(policy, Tabular) and policy.contexts is not None


def _gradient(algorithm: Algorithm, flow: Flow, key: PRNGKeyArray) -> Vector:
    """That of the forward policy, from a new batch."""
    return ravel_pytree(algorithm.draw(flow, key).gradient().forward)[0]


def _trajectories(algorithm: Algorithm, effort: Effort) -> int:
    """How many a sampled reference has: an even number, for it has halves."""
    return 2 * -(-effort.reference * algorithm.batch // 2)


def sampled_fisher(
    env: AbstractEnv, policy: AbstractPolicy, num: int, *, key: PRNGKeyArray
) -> Fisher:
    """The Fisher of the visits of `num` trajectories on-policy, one trajectory after the other."""
    paths = rollout(env, policy, OnPolicy(), num, key=key)
    states, live = jax.tree.map(
        lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:]), (paths.before, paths.live)
    )
    return Fisher(env, policy, Occupancy(states, jnp.where(live, 1 / num, 0.0)))


def halves(fisher: Fisher) -> tuple[Fisher, Fisher]:
    """Two Fishers, of half the visits each; their mean is the one given."""
    env, policy, visits = fisher.env, fisher.policy, fisher.occupancy

    def half(index):
        states, weights = jax.tree.map(
            lambda x: x.reshape(2, -1, *x.shape[1:])[index], (visits.states, visits.weights)
        )
        return Fisher(env, policy, Occupancy(states, 2 * weights))

    return half(0), half(1)


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


class Look(NamedTuple):
    """What differs between tables, networks, and environments that are not enumerated."""

    numbers: Numbers
    reference: Metric | None
    """The reference Fisher, if it may be solved with."""
    surrogate: Metric


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
        surrogate = trajectory_metric(subject.fisher, subject.batch, damping)
        assert isinstance(exact.root, Root)
        assert isinstance(surrogate.root, Root)
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
    less = _less(effort)
    numbers["gamma"] = layer_coupling(fisher, damping, key=gamma_key, effort=less).value
    near = _iterated(pencil.fisher, damping, effort.iterations, inverse.near)
    return Look(numbers, Metric(pencil.fisher, near), surrogate)


def _less(effort: Effort) -> Effort:
    """For layer blocks, a product of which costs as much as one of the Fisher for each layer."""
    return effort._replace(rank=max(effort.rank // 4, 2), iterations=max(effort.iterations // 2, 1))


def _look_at_visits(subject: Subject) -> Look:
    """By products alone, which forget the visits of the reference as they go."""
    _, fisher, _, h, key, effort, damping = subject
    sketch_key, rows_key, rho_key, half_key, gamma_key = jax.random.split(key, 5)
    visited = Fisher(fisher.env, fisher.policy, subject.visited())
    half, other_half = halves(fisher)
    whole, seen, left, right = map(visits_product, (fisher, visited, half, other_half))
    rows = random_rows(fisher, effort.states, rows_key)
    inverse, rank = rows_inverse(rows, damping), rows_rank(rows, damping)
    if effort.rank:
        sketch = nystrom(whole, effort.rank, sketch_key)
        inverse = sketch.inverse(damping)
        rank = jnp.sum(sketch.values / (sketch.values + damping))

    def search(both, other: Fisher, key):
        start = excess(random_rows(other, effort.states, key), inverse)
        pencil, sides = Products(both, whole.size), effort.rank > 0
        return extreme_pairs(pencil, damping, inverse, start, effort.iterations, both=sides)

    def with_half(x):
        part = left.mv(x)
        return (part + right.mv(x)) / 2, part

    found = search(lambda x: (whole.mv(x), seen.mv(x)), visited, rho_key)
    numbers = {
        "rho": found.value,
        "rho_error": found.error,
        "reference_error": search(with_half, half, half_key).value,
        "effective_rank": rank,
    }
    surrogate = Metric(
        seen, _iterated(seen, damping, effort.iterations * (2 if effort.rank else 1))
    )
    if not effort.complete:
        return Look(numbers, None, surrogate)
    size = jnp.maximum(jnp.linalg.norm(h), jnp.finfo(h.dtype).tiny)
    _, unravel = ravel_pytree(eqx.filter(fisher.policy, eqx.is_inexact_array))
    less = _less(effort)
    numbers["gamma"] = visits_coupling(whole, fisher.policy, damping, key=gamma_key, effort=less)
    numbers["curvature_floor"] = on_live_rows(
        lambda fisher: jnp.asarray(directional_floor(fisher, unravel(h / size)).value), fisher
    )
    return Look(
        numbers,
        Metric(whole, _iterated(whole, damping, effort.iterations, inverse.near)),
        surrogate,
    )


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
    masks = _layers(fisher.policy)
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


def visits_coupling(
    fisher: Product,
    policy: AbstractPolicy,
    damping: Scalar,
    *,
    key: PRNGKeyArray,
    effort: Effort = Effort(),
) -> Float[Array, ""]:
    """The same by products: those with the parts of a vector give both, block by block and all."""
    masks = _layers(policy)

    def both(x):
        parts = jax.lax.map(fisher.mv, masks * x)
        return jnp.sum(masks * parts, axis=0), jnp.sum(parts, axis=0)

    sketch_key, start_key = jax.random.split(key)
    blocks = Product(lambda x: both(x)[0], fisher.size)
    inverse = nystrom(blocks, effort.rank, sketch_key).inverse(damping)
    noise = jax.random.normal(start_key, (fisher.size,), masks.dtype)
    start = jax.vmap(inverse.near)(jnp.stack([fisher.mv(noise), noise]))
    pencil = Products(both, fisher.size)
    return extreme_pairs(pencil, damping, inverse, start, effort.iterations).value


def _layers(policy: AbstractPolicy) -> Float[Array, "layers p"]:
    """Ones for the parameters of each array, zeros for all others."""
    leaves = jax.tree.leaves(eqx.filter(policy, eqx.is_inexact_array))
    sizes = jnp.array([x.size for x in leaves])
    total = sum(x.size for x in leaves)
    layer = jnp.repeat(jnp.arange(len(leaves)), sizes, total_repeat_length=total)
    return (layer == jnp.arange(len(leaves))[:, None]).astype(leaves[0].dtype)


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


def _iterated(root: Root | Product, damping: Scalar, iterations: int, near: Any = None) -> Callable:
    """Conjugate gradients, with so many steps at most."""

    def product(x):
        return root.mv(x) + damping * x

    return lambda x: cg(product, x, tol=1e-4, maxiter=iterations, M=near)[0]


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
