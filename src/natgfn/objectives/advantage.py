r"""Advantage balance: sampled steps, each with its own share of the residual, exactly.

On-policy the gradient of trajectory balance is $2\, E \sum_t \delta\, \nabla \log \pi_t$. A step of
a sampled trajectory gets the whole residual $\delta$, of which most is noise: what the other steps
did. Given the context and the action its mean, up to a number that depends on the context alone,
is the advantage
$$\delta_t = U(c_t, a_t) - V(c_t)$$
(`graphical.expected_returns`), so that $2\, E \sum_t \delta_t\, \nabla \log \pi_t$ is the same
gradient. At the target every $\delta_t$ is zero. What is sampled still are contexts and actions.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..envs import AbstractEnv
from ..graphical import expected_returns
from ..policies import Flow, clique_probs, require_assignments
from ..sampling import PathLogProbs, Trajectories, log_probs
from .balance import Penalty
from .base import AbstractObjective
from .penalties import Squared


class AdvantageBalance(AbstractObjective):
    r"""$\sum_t \delta_t^2$ with the gradient above, and the square of $\log Z + \sum V(c)$ over the
    roots of the junction tree, for $\log Z$.

    It is for `envs.Assignments` with a junction tree, and policies that see contexts.

    Attributes:
        penalty: $\ell$; the gradient is that of trajectory balance for the square.
    """

    penalty: Penalty = Squared()

    def residuals(
        self, env: AbstractEnv, flow: Flow, paths: Trajectories
    ) -> tuple[Float[Array, " rows"], PathLogProbs]:
        env = require_assignments(env, "objectives.AdvantageBalance")
        tree, log_factors = env.require_tree("objectives.AdvantageBalance")
        probs = log_probs(env, flow, paths)
        known = jax.lax.stop_gradient(clique_probs(env, flow.forward))
        returns = expected_returns(tree, known, jnp.asarray(log_factors))
        before = paths.before
        rows = jax.vmap(jax.vmap(tree.contexts.row))(before.values, before.step)
        delta = returns.actions[rows, paths.actions] - returns.values[rows]
        # The value is the advantage; the gradient, that of the step.
        delta = delta + probs.steps - jax.lax.stop_gradient(probs.steps)
        total = flow.log_z + jnp.sum(returns.values[tree.roots])
        root = jnp.broadcast_to(total, (1, delta.shape[1]))
        return jnp.concatenate([delta, root]).ravel(), probs

    def shares(self, paths: Trajectories) -> Float[Array, " rows"]:
        """All alike, each a whole: a trajectory has as many as it has steps, and one."""
        return jnp.ones((len(paths.actions) + 1) * paths.lengths.size)
