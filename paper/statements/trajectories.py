"""The Fisher of a law over trajectories, step by step, and what its end hides."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from natgfn.certify import Bound, Identity
from natgfn.policies import AbstractPolicy, Hierarchical, Tabular, Tied

from ..theory import trajectories
from ..theory.instances import grid, ordered_dags, random_network, random_table, tree
from .base import Statement


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


def children(key):
    """The Fisher of parent sets drawn in a fixed order of nodes, and their laws."""
    space = ordered_dags()
    policy = Tied.by_level(space)
    policy = eqx.tree_at(lambda p: p.logits, policy, jax.random.normal(key, policy.logits.shape))
    valid = jnp.arange(space.num_actions) < 2 ** jnp.arange(len(policy.logits))[:, None]
    probs = jax.nn.softmax(jnp.where(valid, policy.logits, -jnp.inf))
    return trajectories.path_scores(space, policy).fisher, probs


def _child_blocks(key):
    fisher, probs = children(key)
    count, sets = probs.shape
    blocks = fisher.reshape(count, sets, count, sets)
    expected = jax.vmap(lambda p: jnp.diag(p) - jnp.outer(p, p))(probs)
    here = jnp.arange(count)
    return Identity(blocks, jnp.zeros_like(blocks).at[here, :, here].set(expected))


STATEMENTS = (
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
)
