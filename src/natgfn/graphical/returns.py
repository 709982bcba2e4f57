r"""What follows in expectation after each context, under an aligned policy.

The surplus of an assignment is $\sum_t g_t$ with $g_t = \log \pi - \sum_\alpha \log \psi_\alpha$ a
function of the clique $C_t$. In the subtree of $t$ its mean after the action $a$ is
$U(c, a) = g(c, a) + \sum_j V(c_j)$, over the contexts $c_j$ of the children, with
$V(c) = \sum_a \pi(a \mid c)\, U(c, a)$. Siblings are independent given their clique, so variances
add up in the same way: $\mathrm{Var}(c) = \sum_a \pi\, [(U - V)^2 + \sum_j \mathrm{Var}(c_j)]$.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from .tree import JunctionTree


class Returns(NamedTuple):
    """Of every context of a tree."""

    actions: Float[Array, "rows values"]
    """$U(c, a)$."""
    values: Float[Array, " rows"]
    """$V(c)$."""
    variances: Float[Array, " rows"]
    r"""$\mathrm{Var}(c)$."""
    occupancy: Float[Array, " rows"]
    """$p(c)$."""


def expected_returns(
    tree: JunctionTree,
    probs: Float[Array, "rows values"],
    log_factors: Float[Array, "rows values"],
) -> Returns:
    r"""Of the surplus $\sum_t g_t$ of a policy, given by context of the tree."""
    possible = probs > 0
    # Where probs underflow, their gradient is zero as well.
    surplus = jnp.log(jnp.where(possible, probs, 1.0)) - log_factors
    surplus = jnp.where(possible, surplus, 0.0)

    def mean(rows, table):
        return jnp.sum(probs[rows] * table, axis=1)

    actions, values = tree.up(surplus, mean)
    _, variances = tree.up(jnp.where(possible, (actions - values[:, None]) ** 2, 0.0), mean)
    return Returns(actions, values, variances, tree.down(probs))
