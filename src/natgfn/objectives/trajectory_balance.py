"""Trajectory balance, the objective of the paper (`eq:tb_loss_training`)."""

from collections.abc import Callable

import equinox as eqx
import jax
from jaxtyping import Array, Float

from ..envs.base import AbstractEnv
from ..policies import Flow
from ..sampling import PathLogProbs, Trajectories, log_probs
from .penalties import Squared


class TrajectoryBalance(eqx.Module):
    r"""$\ell(\delta(\tau))$, with a residual that vanishes when flow and reward balance.

    $$\delta(\tau) = \log Z + \log q_\theta(\tau) - \log R(x) - \log P_B(\tau \mid x)$$

    (`eq:tb_residual_training`). The residual and the penalty on it are separate: solvers
    that work on residuals need the first, gradients the second.

    Attributes:
        penalty: $\ell$, from one number to one number.
    """

    penalty: Callable[[Float[Array, ""]], Float[Array, ""]] = Squared()

    def residuals(
        self, env: AbstractEnv, flow: Flow, paths: Trajectories
    ) -> tuple[Float[Array, " n"], PathLogProbs]:
        """One residual a trajectory, and the log-probabilities it was made of."""
        probs = log_probs(env, flow, paths)
        log_reward = jax.vmap(env.log_reward)(paths.last)
        return flow.log_z + probs.forward - log_reward - probs.backward, probs
