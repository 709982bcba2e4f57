"""When a flow realises its target, and how near a balanced one is to it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from natgfn.certify import Identity
from natgfn.policies import Tabular, backward_table, forward_probs
from natgfn.statespace import constructive_flow, occupancy

from ..theory import realisability
from ..theory.instances import grid, random_table, tree
from .base import Statement


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


STATEMENTS = (
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
