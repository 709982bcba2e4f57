"""Flow matching, the first objective of a GFlowNet (Bengio et al., 2021)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..envs import AbstractEnv
from ..policies import Flow
from ..sampling import PathLogProbs, Trajectories, log_probs
from .balance import Penalty
from .base import AbstractObjective, log_flow, shared
from .penalties import Squared


class FlowMatching(AbstractObjective):
    r"""What flows into each state of a trajectory is what flows out of it.

    $$\delta(s) = \log \sum_{s' \to s} F(s')\, P_F(s \mid s') - \log F(s),$$

    with $F = R$ at the ends. Edge flows are the products $F(s')\, P_F(s \mid s')$, so that
    policies and state flows are those of every other objective. The backward policy is not used.

    Attributes:
        penalty: $\ell$.
        forward_looking: as in `DetailedBalance`.
    """

    learns_flows: ClassVar[bool] = True

    penalty: Penalty = Squared()
    forward_looking: bool = False

    def residuals(
        self, env: AbstractEnv, flow: Flow, paths: Trajectories
    ) -> tuple[Float[Array, " rows"], PathLogProbs]:
        def log_out(state):
            return log_flow(env, flow, state, self.forward_looking)

        def residual(state):
            def log_edge(action, valid):
                # Where there is no parent, the state stands in for it; its value is dropped.
                parent = jax.tree.map(
                    lambda x, y: jnp.where(valid, x, y), env.undo(state, action), state
                )
                steps = flow.forward.log_probs(flow.forward(parent), env.forward_mask(parent))
                return jnp.where(valid, log_out(parent) + steps[action], -jnp.inf)

            valid = env.backward_mask(state)
            edges = jax.vmap(log_edge)(jnp.arange(env.num_actions), valid)
            return jax.nn.logsumexp(edges) - log_out(state)

        found = jax.vmap(jax.vmap(residual))(paths.after)
        return jnp.where(paths.live, found, 0.0).ravel(), log_probs(env, flow, paths)

    def shares(self, paths: Trajectories) -> Float[Array, " rows"]:
        return shared(paths.live)
