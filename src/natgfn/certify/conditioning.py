r"""How weak the curvature can be: `prop:gflownet_fisher_conditioning`.

Limits come first in these bounds: the promised curvature is at most the actual one.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..fisher import Fisher
from ..policies import masked_softmax
from .evidence import Bound


def tabular_floor(visits: Float[Array, " states"], probs: Float[Array, "states actions"]) -> Bound:
    r"""(i) and (iii): $\min_s d(s) \cdot p_{\min} \le \mu_+(F)$ and, sharper, $\min_s d(s)\, p_s$.

    With one decision a state, or a child, and its own parameters for each, $F$ is the direct
    sum of $d\, C(\pi)$. Visits of zero and decisions with one choice have no positive curvature
    and do not count. The promise is the sharper one; the coarser one is `coarse_floor`.
    """
    return Bound(promised_curvature(visits, probs), smallest_curvature(visits, probs))


def promised_curvature(
    visits: Float[Array, " states"], probs: Float[Array, "states actions"]
) -> Float[Array, ""]:
    r"""$\min_s d(s)\, p_{\min}(s)$ over visited states with a choice."""
    choice = _choices(probs) & (visits[:, None] > 0)
    return jnp.min(jnp.where(choice, visits[:, None] * probs, jnp.inf))


def coarse_floor(visits: Float[Array, " states"], probs: Float[Array, "states actions"]) -> Bound:
    r"""(i) as printed: $d_{\min}\, p_{\min} \le \mu_+(F)$."""
    choice = _choices(probs) & (visits[:, None] > 0)
    least_visits = jnp.min(jnp.where(jnp.any(choice, axis=1), visits, jnp.inf))
    least_prob = jnp.min(jnp.where(choice, probs, jnp.inf))
    return Bound(least_visits * least_prob, smallest_curvature(visits, probs))


def smallest_curvature(
    visits: Float[Array, " states"], probs: Float[Array, "states actions"]
) -> Float[Array, ""]:
    r"""$\mu_+(F)$ of a table: the smallest eigenvalue of $d\, C(\pi)$ off the constants."""
    blocks = jax.vmap(lambda p: jnp.diag(p) - jnp.outer(p, p))(probs)
    # Raise the null directions: constants over the choices, and invalid actions.
    choice = probs > 0
    count = jnp.sum(choice, axis=1)[:, None, None]
    constants = choice[:, :, None] * choice[:, None] / jnp.maximum(count, 1)
    invalid = jax.vmap(jnp.diag)((~choice).astype(probs.dtype))
    least = jnp.linalg.eigvalsh(blocks + 2 * (constants + invalid))[:, 0]
    counts = (visits > 0) & jnp.any(_choices(probs), axis=1)
    return jnp.min(jnp.where(counts, visits * least, jnp.inf))


def directional_floor(fisher: Fisher, direction: PyTree[Float[Array, "..."]]) -> Bound:
    r"""(ii): $p_{\min} \sum_s d(s) \|P_s J_s w\|^2 \le w^\top F w$ for a shared policy."""
    least, moved = movement(fisher, direction)
    curvature = sum(
        jnp.vdot(a, b)
        for a, b in zip(
            jax.tree.leaves(direction), jax.tree.leaves(fisher.mv(direction)), strict=True
        )
    )
    return Bound(least * moved, jnp.asarray(curvature))


def movement(
    fisher: Fisher, direction: PyTree[Float[Array, "..."]]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    r"""$p_{\min}$, and how much the relative logits move, $\sum_s d(s) \|P_s J_s w\|^2$.

    $P_s$ removes the mean over the valid actions.
    """
    params, static = eqx.partition(fisher.policy, eqx.is_inexact_array)
    states, visits = fisher.occupancy.states, fisher.occupancy.weights

    def logits(params):
        return jax.vmap(eqx.combine(params, static))(states)

    value, moved = jax.jvp(logits, (params,), (direction,))
    mask = jax.vmap(fisher.env.forward_mask)(states)
    probs = masked_softmax(value, mask)
    count = jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1)
    moved = jnp.where(mask, moved, 0.0)
    relative = jnp.where(mask, moved - jnp.sum(moved, axis=1, keepdims=True) / count, 0.0)
    visited = (visits > 0)[:, None] & mask
    least = jnp.min(jnp.where(visited, probs, jnp.inf))
    return least, jnp.sum(visits[:, None] * relative**2)


def _choices(probs: Float[Array, "states actions"]):
    """Valid actions of states that have more than one."""
    return (probs > 0) & (jnp.sum(probs > 0, axis=1, keepdims=True) > 1)
