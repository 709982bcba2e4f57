r"""Metrics of an aligned policy by messages: exact, however many objects there are.

The law $q$ of the policy and the target $p$ are products of conditionals on the same cliques, so
$$\mathrm{KL}(q \,\|\, p) = \sum_c q(c)\, \mathrm{KL}\bigl(\pi(\cdot \mid c) \,\|\,
  \pi^\star(\cdot \mid c)\bigr),$$
and with $p(c)$ the other way round: sums of terms of one sign, to the last digit.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import rel_entr
from jaxtyping import Array, Float

from ..envs import AbstractEnv, Assignments
from ..graphical import expected_returns, sum_over_values
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
    env = require_assignments(env, "watch.Messages")
    env.require_tree("watch.Messages")
    contexts_of(flows.forward)
    with jax.enable_x64(True):
        wide, flows = jax.tree.map(  # copies: see `metrics.evaluate`
            lambda x: np.array(x, np.float64) if eqx.is_inexact_array_like(x) else x, (env, flows)
        )
        found = _of_flows(wide, flows)
        return {name: np.asarray(value) for name, value in found.items()}


@eqx.filter_jit
def _of_flows(env: Assignments, flows: Flow) -> dict[str, Float[Array, " seeds"]]:
    arrays, static = eqx.partition(flows, eqx.is_array)
    return jax.vmap(lambda x: _of_flow(env, eqx.combine(x, static)))(arrays)


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
    steps, shape = jnp.asarray(tree.contexts.steps), (tree.contexts.num_steps, probs.shape[1])
    change = returns.occupancy[:, None] * probs - wanted[:, None] * target
    off = flow.log_z + jnp.sum(returns.values[tree.roots])
    return {
        "kl": kl,
        "reverse_kl": reverse,
        "elbo": log_z - kl,
        "eubo": log_z + reverse,
        "marginal_error": jnp.max(jnp.abs(jnp.zeros(shape).at[steps].add(change))),
        "loss": off**2 + jnp.sum(returns.variances[tree.roots]),
    }
