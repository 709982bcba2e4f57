r"""Trajectory balance in expectation, by messages: no trajectory is drawn.

Of an aligned policy on `envs.Assignments`, $\delta(\tau) = \log Z + \sum_t g_t$ with
$g_t = \log \pi - \sum_\alpha \log \psi_\alpha$ a function of the clique $C_t$. What lies outside
the subtree of $t$ does not depend on $v_t$ given $x_{S_t}$, so in the gradient
$$h(c, a) = 2\, p(c)\, \pi(a \mid c)\, \bigl(U(c, a) - V(c)\bigr)$$
only the subtree counts: $U(c, a) = g(c, a) + \sum_j V(c_j)$ over the contexts $c_j$ of the
children, and $V(c) = \sum_a \pi(a \mid c)\, U(c, a)$. One message up for $V$, one down for $p$.

With the exact Fisher the natural direction of a table is $2 (U - V)$, and half of it sets
$\theta = \sum_\alpha \log \psi_\alpha - \sum_j V(c_j)$ up to a constant. Once the children have
their target, so have their parents: after as many such steps as the tree is deep, all have.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..envs import AbstractEnv
from ..graphical import expected_returns
from ..policies import Flow, clique_probs, require_assignments
from ..sampling import Trajectories
from .balance import LogVariance, TrajectoryBalance
from .base import AbstractObjective
from .penalties import Squared


class Expected(eqx.Module):
    """An objective in expectation over the trajectories of the policy, and its gradient."""

    loss: Float[Array, ""]
    slope: Flow

    def gradient(self) -> Flow:
        return self.slope

    @property
    def paths(self) -> Trajectories:
        raise ValueError(
            "sources.Messages draws no trajectories: use Euclidean, Adam, or Natural with a rate "
            "and occupancy.Separators, Truncated or Beliefs"
        )

    def require_residuals_only(self, what: str) -> None:
        """Raise `ValueError`: there are no residuals."""
        raise ValueError(
            f"{what} steps on the residuals of trajectories, and there are none: with "
            "sources.Messages use Natural with a rate"
        )


def expected(objective: AbstractObjective, env: AbstractEnv, flow: Flow) -> Expected:
    """Trajectory balance, or the variance of log Z, in expectation."""
    env = require_assignments(env, "sources.Messages")
    squared = isinstance(objective, TrajectoryBalance | LogVariance) and isinstance(
        objective.penalty, Squared
    )
    if not squared:
        raise ValueError(
            f"sources.Messages knows the expectation of squared trajectory balance and of its "
            f"variance, not of {type(objective).__name__} with this penalty: use sources.Fresh"
        )
    tree, log_factors = env.require_tree("sources.Messages")
    params, static = eqx.partition(flow.forward, eqx.is_inexact_array)
    probs, pull = jax.vjp(lambda p: clique_probs(env, eqx.combine(p, static)), params)
    found = expected_returns(tree, probs, jnp.asarray(log_factors))
    # The derivative of a probability is itself times that of its logarithm.
    (forward,) = pull(2 * found.occupancy[:, None] * (found.actions - found.values[:, None]))
    still = jax.tree.map(jnp.zeros_like, eqx.filter(flow, eqx.is_inexact_array))
    roots = tree.roots
    off = flow.log_z + jnp.sum(found.values[roots])
    spread = jnp.sum(found.variances[roots])
    if isinstance(objective, LogVariance):
        return Expected(spread, eqx.tree_at(lambda f: f.forward, still, forward))
    slope = eqx.tree_at(lambda f: (f.forward, f.log_z), still, (forward, 2 * off))
    return Expected(off**2 + spread, slope)
