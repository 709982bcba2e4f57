"""Every statement of the paper, with random instances to put it to the test.

A statement draws an instance from a key and returns the evidence: both sides of an
inequality or an equation. Where it is an inequality, `tight` gives an instance near equality, so
that a bound which is too generous is found out as well as one which is too strict.
"""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PRNGKeyArray

from ..fisher import Fisher
from ..occupancy import Exact
from ..policies import (
    AbstractPolicy,
    Hierarchical,
    Tabular,
    Tied,
    backward_table,
    forward_probs,
)
from ..statespace import constructive_flow, occupancy
from . import conditioning, geometry, realisability, surrogate, trajectories
from .evidence import Bound, Evidence, Identity
from .instances import (
    SIZE,
    grid,
    ordered_dags,
    random_gradients,
    random_network,
    random_pair,
    random_table,
    shrunk,
    trajectory_law,
    tree,
)


@dataclass(frozen=True)
class Statement:
    """One statement of the paper.

    Attributes:
        label: the paper's.
        claim: what is checked, in words.
        check: from a key to the evidence of one instance.
        tight: an instance near equality, for inequalities.
        rounding: how far an identity may be off; the expansion in a small step is not exact.
    """

    label: str
    claim: str
    check: Callable[[PRNGKeyArray], Evidence]
    tight: Callable[[], Bound] | None = None
    rounding: float = 1e-9


# Geometry.


def _kl_expansion(key):
    policy_key, change_key = jax.random.split(key)
    log_law, theta = trajectory_law(grid(), random_table(grid(), policy_key))
    change = 1e-3 * jax.random.normal(change_key, theta.shape)
    # Both ways, the terms of third order cancel.
    there, quadratic = geometry.kl_expansion(log_law, theta, change)
    back, _ = geometry.kl_expansion(log_law, theta, -change)
    return Identity((there + back) / 2, quadratic)


def _trust_region(key, natural=False):
    policy_key, h_key, change_key = jax.random.split(key, 3)
    paths = trajectories.path_scores(tree(), random_table(tree(), policy_key))
    h = jax.random.normal(h_key, paths.probs.shape) * paths.probs @ paths.scores
    change = jax.random.normal(change_key, h.shape)
    if natural:
        change = geometry.natural_gradient(paths.fisher, h)
    return geometry.trust_region_bound(paths.fisher, h, change, 0.1)


def _divergence(log_q):
    """An objective that depends on the law only: from a fixed law that favours some outcomes."""
    target = jax.nn.log_softmax(jnp.sin(1.7 * jnp.arange(log_q.size)))
    return jnp.sum(jnp.exp(target) * (target - log_q))


def _reparameterisation(key, extra):
    policy_key, mix_key, place_key = jax.random.split(key, 3)
    log_law, theta = trajectory_law(tree(), random_table(tree(), policy_key))
    mix = jax.random.normal(mix_key, (theta.size, theta.size + extra)) / theta.size**0.5
    mix = mix + jnp.eye(theta.size, theta.size + extra)
    place = jax.random.normal(place_key, (theta.size + extra,))
    return geometry.reparameterisation(
        log_law, _divergence, lambda x: theta + mix @ (x + 0.1 * jnp.sin(x)), place
    )


def _local_descent(key, rate=0.3):
    log_law, theta = trajectory_law(tree(), random_table(tree(), key))
    return geometry.local_descent(log_law, _divergence, theta, rate)


def _square_root(key):
    return geometry.square_root_isometry(
        jax.nn.softmax(jax.random.normal(key, (SIZE,))), *jax.random.normal(key, (2, SIZE))
    )


def _logistic_graph(key):
    features = jax.random.normal(key, (SIZE, 3))
    return geometry.logistic_graph_fisher(features, jax.random.normal(key, (3,)))


def _exponential_family(key):
    statistics = jax.random.normal(key, (12, 4))
    return geometry.exponential_family_fisher(statistics, jax.random.normal(key, (4,)))


# Trajectories.


def _paths(key, shared=True):
    space = grid()
    policy = random_network(space, key) if shared else random_table(space, key)
    return space, policy, trajectories.path_scores(space, policy)


def _multiplier(key, paths, other_law):
    """Any function of the trajectory; under another law it comes with the ratio of the laws."""
    r_key, law_key = jax.random.split(key)
    r = jax.random.normal(r_key, paths.probs.shape)
    if other_law:
        r = r * jax.nn.softmax(2 * jax.random.normal(law_key, r.shape)) / paths.probs
    return r


def _score_range(key, other_law):
    _, _, paths = _paths(key)
    return trajectories.score_range(paths, _multiplier(key, paths, other_law))


def _score_bound(key, other_law):
    _, _, paths = _paths(key)
    return trajectories.score_bound(paths, _multiplier(key, paths, other_law))


def _score_bound_tight():
    # A multiplier that is itself a combination of scores leaves nothing out.
    _, _, paths = _paths(jax.random.key(0))
    direction = jax.random.normal(jax.random.key(1), paths.scores.shape[1:])
    return trajectories.score_bound(paths, paths.scores @ direction)


def _occupancy_fisher(key, shared):
    return trajectories.occupancy_fisher(*_paths(key, shared))


def _terminal_sum(key):
    return trajectories.terminal_fisher(*_paths(key)).sum


def _canonical(key):
    """In a tree the order of construction is no secret: nothing is hidden."""
    policy = random_table(tree(), key)
    paths = trajectories.path_scores(tree(), policy)
    return Identity(trajectories.terminal_fisher(tree(), policy, paths).terminal, paths.fisher)


def _not_canonical(key):
    """On the grid something is, whatever the policy."""
    found = trajectories.terminal_fisher(*_paths(key, shared=False))
    return Bound(1e-9, jnp.trace(found.hidden) / jnp.trace(found.terminal + found.hidden))


_GROUPS = (0, 0, 1)
"""On the grid: move or stop, then where to."""


def _hierarchy(key, shared):
    space = grid()
    count = max(_GROUPS) + 1
    outputs = count + space.num_actions
    if shared:
        levels: AbstractPolicy = random_network(space, key, outputs)
    else:
        levels = Tabular(jax.random.normal(key, (space.num_inner, outputs)))
    policy = Hierarchical.of(space, levels, _GROUPS)
    # Upper parameters are those that lead to the logits of the groups only.
    marks = jax.tree.map(jnp.zeros_like, eqx.filter(policy, eqx.is_inexact_array))
    if shared:
        last = lambda m: (m.levels.rest[-1].weight, m.levels.rest[-1].bias)  # noqa: E731
        marks = eqx.tree_at(last, marks, tuple(x.at[:count].set(1.0) for x in last(marks)))
    else:
        table = lambda m: m.levels.logits  # noqa: E731
        marks = eqx.tree_at(table, marks, table(marks).at[:, :count].set(1.0))
    block = ravel_pytree(marks)[0].astype(int)
    fisher = trajectories.path_scores(space, policy).fisher
    return trajectories.block_coupling(fisher, block)[0]


def _separate_levels(key):
    return Identity(_hierarchy(key, shared=False), jnp.zeros(()), 1.0)


def _shared_trunk(key):
    return Bound(1e-4, _hierarchy(key, shared=True))


def _children(key):
    space = ordered_dags()
    policy = Tied.by_level(space)
    policy = eqx.tree_at(lambda p: p.logits, policy, jax.random.normal(key, policy.logits.shape))
    valid = jnp.arange(space.num_actions) < 2 ** jnp.arange(len(policy.logits))[:, None]
    probs = jax.nn.softmax(jnp.where(valid, policy.logits, -jnp.inf))
    return trajectories.path_scores(space, policy).fisher, probs


def _child_blocks(key):
    fisher, probs = _children(key)
    children, sets = probs.shape
    blocks = fisher.reshape(children, sets, children, sets)
    expected = jax.vmap(lambda p: jnp.diag(p) - jnp.outer(p, p))(probs)
    here = jnp.arange(children)
    return Identity(blocks, jnp.zeros_like(blocks).at[here, :, here].set(expected))


def _child_floor(key):
    _, probs = _children(key)
    return conditioning.tabular_floor(jnp.ones(len(probs)), probs)


# Conditioning.


def _visits(key, scale=1.0):
    space = grid()
    policy = Tabular(scale * random_table(space, key).logits)
    probs = forward_probs(space, policy)
    return occupancy(space, probs)[0], probs


def _uniform_floor(floor):
    visits, probs = _visits(jax.random.key(0), scale=0.0)
    # One decision between three, so that the least visits and probabilities meet.
    return floor(visits[:1], probs[:1])


def _directional_floor(key, uniform=False):
    # With two actions everywhere, a policy of zero logits attains the bound.
    space = tree() if uniform else grid()
    policy = random_network(space, key)
    if uniform:
        last = lambda p: (p.rest[-1].weight, p.rest[-1].bias)  # noqa: E731
        policy = eqx.tree_at(last, policy, replace_fn=jnp.zeros_like)
    fisher = Fisher(space, policy, Exact()(space, policy))
    flat, unravel = ravel_pytree(eqx.filter(policy, eqx.is_inexact_array))
    return conditioning.directional_floor(fisher, unravel(jax.random.normal(key, flat.shape)))


# Surrogates.


def _direction(key):
    pair_key, gradient_key = jax.random.split(key)
    fisher, other, damping = random_pair(pair_key)
    return surrogate.direction_bound(fisher, other, *random_gradients(gradient_key), damping)


def _direction_tight():
    fisher, other, h, damping = shrunk(-0.6)
    return surrogate.direction_bound(fisher, other, h, 1.3 * h, damping)


def _pairing(key, side):
    pair_key, gradient_key = jax.random.split(key)
    fisher, other, damping = random_pair(pair_key)
    h, _ = random_gradients(gradient_key)
    return surrogate.pairing_bounds(fisher, other, h, damping)[side]


def _pairing_tight(side):
    fisher, other, h, damping = shrunk((0.6, -0.6)[side])
    return surrogate.pairing_bounds(fisher, other, h, damping)[side]


def _coupling(key):
    pair_key, x_key = jax.random.split(key)
    blocks, fisher, damping = random_pair(pair_key)
    return surrogate.coupling_bound(fisher, blocks, jax.random.normal(x_key, (SIZE,)), damping)


def _coupling_tight():
    blocks, fisher, h, damping = shrunk(0.6)
    return surrogate.coupling_bound(fisher, blocks, h, damping)


def _implied(key):
    blocks, fisher, damping = random_pair(key)
    return surrogate.implied_error_bound(fisher, blocks, damping)


def _implied_tight():
    blocks, fisher, _, damping = shrunk(-0.4)
    return surrogate.implied_error_bound(fisher, blocks, damping)


def _descent(key):
    pair_key, gradient_key, share_key, rate_key = jax.random.split(key, 4)
    fisher, other, damping = random_pair(pair_key)
    h, _ = random_gradients(gradient_key)
    smoothness = 2.0
    # Curvature anywhere between nothing and all that smoothness allows, in each direction.
    values, vectors = jnp.linalg.eigh(fisher + damping * jnp.eye(SIZE))
    values = values * jax.random.uniform(share_key, (SIZE,))
    rate = jax.random.uniform(rate_key, minval=0.01, maxval=1.0)
    rate = rate * 2 * (1 - surrogate.relative_error(fisher, other, damping)) / smoothness
    return surrogate.descent_bound(
        fisher,
        other,
        h,
        damping,
        curvature=smoothness * vectors * values @ vectors.T,
        smoothness=smoothness,
        rate=rate,
    )


def _descent_tight():
    fisher, other, h, damping = shrunk(-0.5)
    curvature = 2.0 * (fisher + damping * jnp.eye(SIZE))
    return surrogate.descent_bound(
        fisher, other, h, damping, curvature=curvature, smoothness=2.0, rate=0.25
    )


def _small_pair(key):
    """An absolute error below the curvature floor."""
    fisher, other, damping = random_pair(key)
    delta = surrogate.absolute_error(fisher, other)
    share = jnp.minimum(1.0, 0.95 * surrogate.curvature_floor(fisher, damping) / delta)
    return fisher, fisher + share * (other - fisher), damping


def _inverse(key):
    return surrogate.inverse_bound(*_small_pair(key))


def _inverse_tight():
    fisher, other, _, damping = shrunk(-0.5)
    return surrogate.inverse_bound(fisher, other, damping)


def _additive(key):
    pair_key, gradient_key = jax.random.split(key)
    fisher, other, damping = _small_pair(pair_key)
    return surrogate.additive_bound(fisher, other, *random_gradients(gradient_key), damping)


def _additive_tight():
    fisher, other, h, damping = shrunk(-0.5)
    return surrogate.additive_bound(fisher, other, h, 1.3 * h, damping)


def _coarse(key):
    pair_key, gradient_key = jax.random.split(key)
    fisher, other, damping = random_pair(pair_key)
    return surrogate.coarse_bound(fisher, other, *random_gradients(gradient_key), damping)


def _coarse_tight():
    # No curvature, and a surrogate that sees a little along the gradient.
    h = jnp.eye(SIZE)[0]
    return surrogate.coarse_bound(
        jnp.zeros((SIZE, SIZE)), 1e-3 * jnp.outer(h, h), h, 0.999 * h, 1.0
    )


# Realisability.


def _constructive_flow(key):
    space = grid()
    log_pb = backward_table(space, Tabular(jax.random.normal(key, space.parent.shape)))
    _, log_pf = constructive_flow(space, log_pb, jnp.asarray(space.log_rewards))
    return Identity(occupancy(space, jnp.exp(log_pf))[1], jnp.exp(jnp.asarray(space.log_target)))


def _balance(key, gap):
    """Policies and flows near the exact ones."""
    space = grid()
    size_key, *keys = jax.random.split(key, 5)
    size = 10 ** jax.random.uniform(size_key, minval=-6, maxval=0)
    log_pb = backward_table(space, Tabular(jax.random.normal(keys[0], space.parent.shape)))
    log_flow, log_pf = constructive_flow(space, log_pb, jnp.asarray(space.log_rewards))
    moved = log_pf + size * jax.random.normal(keys[1], log_pf.shape)
    log_pf = moved - jax.nn.logsumexp(moved, axis=1, keepdims=True)
    log_flow = log_flow + size * jax.random.normal(keys[2], log_flow.shape)
    if gap is realisability.trajectory_balance_gap:
        return gap(space, log_pf, log_pb, log_flow[0])
    return gap(space, log_pf, log_pb, log_flow)


def _balance_tight(gap):
    """Objects behind the second branch are rare, and their residuals have the other sign."""
    space, error = tree(), 0.01
    rare = np.asarray(space.terminals.edges) & 1 == 1
    rewards = np.where(rare, -12.0, 0.0)
    space = eqx.tree_at(lambda s: s.log_rewards, space, rewards)
    log_pb = backward_table(space, Tabular(jnp.zeros(space.parent.shape)))
    steps = space.max_steps + 1
    residuals = jnp.where(rare, error * steps, -error * steps)
    _, log_pf = constructive_flow(space, log_pb, jnp.asarray(rewards) + residuals)
    log_z = jax.nn.logsumexp(jnp.asarray(rewards) + residuals)
    if gap is realisability.trajectory_balance_gap:
        return gap(space, log_pf, log_pb, log_z)
    # The flow that spreads each residual evenly over the edges of its path and the end.
    log_flow, _ = constructive_flow(space, log_pb, jnp.asarray(rewards))
    behind = jnp.asarray(space.states.edges) & 1 == 1
    left = space.max_steps + 1 - jnp.asarray(space.level)
    log_flow = log_flow + jnp.where(behind, error, -error) * left
    return gap(space, log_pf, log_pb, log_flow.at[0].set(log_z))


def _unreachable(key):
    """A policy that closes the first branch never makes what lies behind it."""
    space = tree()
    probs = forward_probs(space, random_table(space, key)).at[0].set(jnp.array([0.0, 1.0]))
    law = occupancy(space, probs)[1]
    open_ = realisability.reachable(space, probs)
    return Identity((law > 0).astype(float), open_.astype(float), 1.0)


STATEMENTS: tuple[Statement, ...] = (
    Statement(
        "eq:prelim_kl_expansion",
        "KL of two trajectory laws is half the Fisher form, to second order",
        _kl_expansion,
        rounding=1e-3,
    ),
    Statement(
        "eq:prelim_trust_region",
        "no step of the KL ball gains more than the natural gradient",
        _trust_region,
        lambda: _trust_region(jax.random.key(0), natural=True),
    ),
    Statement(
        "eq:appendix_fisher_reparam",
        "the natural gradient moves the law alike in nonlinear coordinates",
        lambda key: _reparameterisation(key, 0),
        rounding=1e-6,
    ),
    Statement(
        "eq:appendix_fisher_reparam",
        "and in redundant ones, where only the tangent vector is invariant",
        lambda key: _reparameterisation(key, 5),
        rounding=1e-6,
    ),
    Statement(
        "eq:appendix_fisher_smooth",
        "a natural step descends at least as much as smoothness promises",
        _local_descent,
        lambda: _local_descent(jax.random.key(0), 1e-3),
    ),
    Statement(
        "eq:prelim_cat_block",
        "the softmax Fisher is Diag(p) - pp'",
        lambda key: geometry.categorical_block(jax.random.normal(key, (SIZE,))),
    ),
    Statement(
        "eq:prelim_cat_block",
        "its null space is the constants, and nothing else",
        lambda key: geometry.categorical_null(jax.random.normal(key, (SIZE,))),
        rounding=1e-6,
    ),
    Statement("eq:appendix_sqrt_map", "the square-root map is an isometry", _square_root),
    Statement("eq:appendix_expfam_fisher", "F = Hessian of A = Cov[T]", _exponential_family),
    Statement(
        "eq:appendix_logistic_graph_fisher",
        "independent edges: a sum over edges, against all graphs",
        _logistic_graph,
    ),
    Statement(
        "prop:score_compatible_gradient",
        "h lies in the range of F, on-policy",
        lambda key: _score_range(key, other_law=False),
        rounding=1e-6,
    ),
    Statement(
        "prop:score_compatible_gradient",
        "h lies in the range of F, reweighted",
        lambda key: _score_range(key, other_law=True),
        rounding=1e-6,
    ),
    Statement(
        "prop:score_compatible_gradient",
        "h'F+h <= E[r^2], on-policy",
        lambda key: _score_bound(key, other_law=False),
        _score_bound_tight,
    ),
    Statement(
        "prop:score_compatible_gradient",
        "h'F+h <= E[r^2], reweighted",
        lambda key: _score_bound(key, other_law=True),
        _score_bound_tight,
    ),
    Statement(
        "thm:riemannian_policy_induced",
        "cross-time terms of the trajectory Fisher vanish",
        lambda key: trajectories.cross_time(_paths(key)[2]),
    ),
    Statement(
        "thm:riemannian_policy_induced",
        "the sum over steps is the trajectory Fisher",
        lambda key: trajectories.temporal_fisher(_paths(key)[2]),
    ),
    Statement(
        "cor:exact_tabular_fisher_main",
        "table: occupancies times categorical blocks",
        lambda key: _occupancy_fisher(key, shared=False),
    ),
    Statement(
        "eq:shared_exact_fisher_main",
        "shared network: occupancies times pulled-back blocks",
        lambda key: _occupancy_fisher(key, shared=True),
    ),
    Statement(
        "prop:terminal_vs_trajectory_fisher",
        "trajectory = terminal + expected conditional covariance",
        _terminal_sum,
    ),
    Statement(
        "prop:terminal_vs_trajectory_fisher", "equal where constructions are unique", _canonical
    ),
    Statement(
        "prop:terminal_vs_trajectory_fisher",
        "and only there: on the grid the difference is not zero",
        _not_canonical,
    ),
    Statement(
        "app:conditional_fisher_factorization",
        "two levels with parameters of their own: no coupling",
        _separate_levels,
    ),
    Statement(
        "app:conditional_fisher_factorization",
        "two levels on a shared trunk: coupling",
        _shared_trunk,
    ),
    Statement(
        "app:conditional_fisher_factorization",
        "fixed node order: exact child blocks",
        _child_blocks,
    ),
    Statement(
        "eq:structured_natdir_bound_main",
        "direction error, with both terms",
        _direction,
        _direction_tight,
    ),
    Statement(
        "thm:structure_dependent_approx",
        "pairing from below",
        lambda key: _pairing(key, 0),
        lambda: _pairing_tight(0),
    ),
    Statement(
        "thm:structure_dependent_approx",
        "pairing from above",
        lambda key: _pairing(key, 1),
        lambda: _pairing_tight(1),
    ),
    Statement(
        "thm:structure_dependent_approx",
        "F within 1 -+ gamma of the blocks, along any direction",
        _coupling,
        _coupling_tight,
    ),
    Statement(
        "thm:structure_dependent_approx",
        "rho <= gamma / (1 - gamma)",
        _implied,
        _implied_tight,
    ),
    Statement(
        "cor:surrogate_fisher_descent", "promised descent is achieved", _descent, _descent_tight
    ),
    Statement(
        "cor:additive_fisher_constants",
        "norm of the surrogate's inverse",
        _inverse,
        _inverse_tight,
    ),
    Statement(
        "eq:additive_natdir_bound_main", "absolute direction error", _additive, _additive_tight
    ),
    Statement(
        "cor:additive_fisher_constants",
        "the coarser bound, without a condition",
        _coarse,
        _coarse_tight,
    ),
    Statement(
        "prop:gflownet_fisher_conditioning",
        "(i) table: d_min p_min below the smallest curvature",
        lambda key: conditioning.coarse_floor(*_visits(key)),
        lambda: _uniform_floor(conditioning.coarse_floor),
    ),
    Statement(
        "prop:gflownet_fisher_conditioning",
        "(ii) shared: relative logits bound the curvature of any direction",
        _directional_floor,
        lambda: _directional_floor(jax.random.key(0), uniform=True),
    ),
    Statement(
        "prop:gflownet_fisher_conditioning",
        "(iii) children: min d_j p_j below the smallest curvature",
        _child_floor,
        lambda: _uniform_floor(conditioning.tabular_floor),
    ),
    Statement(
        "app:gflownet_realizability",
        "what a policy closes off has probability zero, and nothing else has",
        _unreachable,
    ),
    Statement(
        "eq:app_realizability_forward_policy",
        "the constructive flow realises the target",
        _constructive_flow,
    ),
    Statement(
        "eq:app_tb_terminal_law",
        "TB residuals bound the distance of the terminal law",
        lambda key: _balance(key, realisability.trajectory_balance_gap),
        lambda: _balance_tight(realisability.trajectory_balance_gap),
    ),
    Statement(
        "eq:app_exact_DB_edge",
        "DB residuals bound the distance of the terminal law",
        lambda key: _balance(key, realisability.detailed_balance_gap),
        lambda: _balance_tight(realisability.detailed_balance_gap),
    ),
)
