"""Evaluate a flow on an enumerated environment, without sampling noise."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..policies import AbstractPolicy, Flow, Tabular, backward_table, forward_table
from ..statespace import StateSpace, exact_residuals, occupancy
from . import distributions as d

METRICS = ("tv", "kl", "reverse_kl", "jsd", "elbo", "gap", "l1", "modes", "loss")
"""What `evaluate` returns, beside the terminal law."""


def evaluate(
    space: StateSpace, flows: Flow
) -> tuple[dict[str, Float[np.ndarray, " seeds"]], Float[np.ndarray, "seeds terminals"]]:
    """Metrics and terminal laws of flows stacked along a leading axis, in float64.

    Returns:
        `tv`, `kl` of $q$ from the target and `reverse_kl`, `jsd`, `elbo`, `gap`
        (the target's `elbo` less $q$'s), `l1` (mean over objects), `modes` found, and the
        expected on-policy `loss` of squared trajectory balance; then the laws.
    """
    flows = _read(space, flows)
    with jax.enable_x64(True):
        wide = jax.tree.map(
            lambda x: np.asarray(x, np.float64) if eqx.is_inexact_array(x) else x, flows
        )
        # JAX 0.10 remembers arrays by identity: one that a program in single precision has
        # closed over would be passed in single precision again.
        fresh = eqx.tree_at(lambda s: s.log_rewards, space, space.log_rewards.copy())
        metrics, laws = _evaluate(fresh, wide)
        return {name: np.asarray(value) for name, value in metrics.items()}, np.asarray(laws)


@eqx.filter_jit
def _read(space: StateSpace, flows: Flow) -> Flow:
    """Flows whose networks are tables of their logits: computed as in training, the rest wide."""

    def table(policy: AbstractPolicy, count: int) -> AbstractPolicy:
        if not policy.by_visits:
            return policy
        arrays, static = eqx.partition(policy, eqx.is_array)

        def of_seed(arrays):
            some = min(count, _TOGETHER)
            starts = some * jnp.arange(-(-count // some))
            many = eqx.combine(arrays, static).many
            found = jax.lax.map(lambda start: many(start + jnp.arange(some)), starts)
            return Tabular(found.reshape(-1, found.shape[-1])[:count])

        return jax.lax.map(of_seed, arrays)

    tables = table(flows.forward, space.num_inner), table(flows.backward, space.num_states)
    return eqx.tree_at(lambda flow: (flow.forward, flow.backward), flows, tables)


_TOGETHER = 2**13  # states whose activations are kept at a time


@eqx.filter_jit
def _evaluate(space: StateSpace, flows: Flow):
    arrays, static = eqx.partition(flows, eqx.is_array)
    return jax.vmap(lambda x: _evaluate_one(space, eqx.combine(x, static)))(arrays)


def _evaluate_one(space: StateSpace, flow: Flow) -> tuple[dict[str, Array], Array]:
    log_pf = forward_table(space, flow.forward)
    log_pb = backward_table(space, flow.backward)
    q = occupancy(space, jnp.exp(log_pf))[1]
    found = judge(q, jnp.asarray(space.log_rewards), jnp.asarray(space.modes))
    return found | {"loss": exact_residuals(space, log_pf, log_pb, flow.log_z).loss}, q


def judge(
    q: Float[Array, " n"], log_reward: Float[Array, " n"], modes: Bool[Array, " n"]
) -> dict[str, Float[Array, ""]]:
    """Every metric of a terminal law."""
    p = jax.nn.softmax(log_reward)
    elbo = d.expected_log_reward(q, log_reward)
    return {
        "tv": d.total_variation(q, p),
        "kl": d.kl_divergence(q, p),
        "reverse_kl": d.kl_divergence(p, q),
        "jsd": d.jensen_shannon(q, p),
        "elbo": elbo,
        "gap": d.expected_log_reward(p, log_reward) - elbo,
        "l1": jnp.mean(jnp.abs(q - p)),
        "modes": d.modes_found(q, p, modes),
    }
