r"""Metrics of an aligned policy by messages: exact, however many objects there are.

The law $q$ of the policy and the target $p$ are products of conditionals on the same cliques, so
$$\mathrm{KL}(q \,\|\, p) = \sum_c q(c)\, \mathrm{KL}\bigl(\pi(\cdot \mid c) \,\|\,
  \pi^\star(\cdot \mid c)\bigr),$$
and with $p(c)$ the other way round: sums of terms of one sign, to the last digit.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import rel_entr
from jaxtyping import Array, Float

from ..envs import AbstractEnv, Assignments
from ..graphical import JunctionTree, expected_returns, sum_over_values
from ..policies import Flow, clique_probs, contexts_of, require_assignments

MESSAGE_METRICS = ("kl", "reverse_kl", "elbo", "eubo", "marginal_error", "loss")
"""What `message_metrics` returns."""


def message_metrics(env: AbstractEnv, flows: Flow) -> dict[str, Float[np.ndarray, " seeds"]]:
    r"""Of flows stacked along a leading axis, in float64.

    Returns:
        `kl` of $q$ from the target and `reverse_kl`, `elbo` and `eubo`, $\log Z$ less the one and
        plus the other; `marginal_error`, the largest error of a probability $q(x_v = a)$; and the
        expected `loss` of squared trajectory balance on-policy.
    """
    return _of_flows(_of_flow, env, flows, "watch.Messages")


def message_marginals(env: AbstractEnv, flows: Flow) -> Float[np.ndarray, "seeds variables values"]:
    """$q(x_v = a)$ of flows stacked along a leading axis, in float64."""
    return _of_flows(_marginals_of, env, flows, "metrics.message_marginals")


def _of_flows(what: Callable[[Assignments, Flow], Any], env: AbstractEnv, flows: Flow, name: str):
    """A function of each flow."""
    env = require_assignments(env, name)
    env.require_tree(name)
    contexts_of(flows.forward)
    with jax.enable_x64(True):
        wide, flows = jax.tree.map(  # copies: see `metrics.evaluate`
            lambda x: np.array(x, np.float64) if eqx.is_inexact_array_like(x) else x, (env, flows)
        )
        return jax.tree.map(np.asarray, _each(what, wide, flows))


@eqx.filter_jit
def _each(what: Callable[[Assignments, Flow], Any], env: Assignments, flows: Flow):
    arrays, static = eqx.partition(flows, eqx.is_array)
    return jax.vmap(lambda x: what(env, eqx.combine(x, static)))(arrays)


def _marginals_of(env: Assignments, flow: Flow) -> Float[Array, "variables values"]:
    tree, _ = env.require_tree("metrics.message_marginals")
    probs = clique_probs(env, flow.forward)
    by_step = _by_step(tree, tree.down(probs)[:, None] * probs)
    return jnp.zeros_like(by_step).at[jnp.asarray(env.order)].set(by_step)


def _by_step(tree: JunctionTree, mass: Float[Array, "rows values"]) -> Float[Array, "steps values"]:
    """The mass of each value at each step."""
    nothing = jnp.zeros((tree.contexts.num_steps, mass.shape[1]), mass.dtype)
    return nothing.at[jnp.asarray(tree.contexts.steps)].add(mass)


def _of_flow(env: Assignments, flow: Flow) -> dict[str, Float[Array, ""]]:
    tree, log_factors = env.require_tree("watch.Messages")
    log_factors = jnp.asarray(log_factors)
    probs = clique_probs(env, flow.forward)
    weights, totals = tree.up(log_factors, sum_over_values)
    target = jnp.exp(weights - jnp.where(totals > -jnp.inf, totals, 0.0)[:, None])
    returns = expected_returns(tree, probs, log_factors)
    wanted = tree.down(target)
    log_z = jnp.sum(totals[tree.roots])
    kl = returns.occupancy @ jnp.sum(rel_entr(probs, target), axis=1)
    reverse = wanted @ jnp.sum(rel_entr(target, probs), axis=1)
    change = returns.occupancy[:, None] * probs - wanted[:, None] * target
    off = flow.log_z + jnp.sum(returns.values[tree.roots])
    return {
        "kl": kl,
        "reverse_kl": reverse,
        "elbo": log_z - kl,
        "eubo": log_z + reverse,
        "marginal_error": jnp.max(jnp.abs(_by_step(tree, change))),
        "loss": off**2 + jnp.sum(returns.variances[tree.roots]),
    }
