"""How small the curvature of a policy can be."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from natgfn.certify import conditioning
from natgfn.fisher import Fisher
from natgfn.occupancy import Exact
from natgfn.policies import Tabular, forward_probs
from natgfn.statespace import occupancy

from ..theory.instances import grid, random_network, random_table, tree
from .base import Statement
from .trajectories import children


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


def _child_floor(key):
    _, probs = children(key)
    return conditioning.tabular_floor(jnp.ones(len(probs)), probs)


STATEMENTS = (
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
)
