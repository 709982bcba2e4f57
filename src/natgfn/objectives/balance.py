r"""Balance conditions: flows in and out agree along a trajectory, a step, or a stretch of one.

With the potential $\varphi_t = \log F(s_t) - \sum_{u < t} \log P_F(u) - \log P_B(u)$ along a
trajectory, the residual of the stretch from $i$ to $j$ is $\varphi_i - \varphi_j$: of the whole
for trajectory balance, of each step for detailed balance, of every stretch between.
"""

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..envs import AbstractEnv
from ..policies import Flow
from ..sampling import PathLogProbs, Trajectories, equal_share, log_probs, summed
from .base import AbstractObjective, log_flow, shared, surplus
from .penalties import Squared

Penalty = Callable[[Float[Array, ""]], Float[Array, ""]]


class TrajectoryBalance(AbstractObjective):
    r"""Trajectory balance, the objective of the paper (`eq:tb_loss_training`).

    $$\delta(\tau) = \log Z + \log q_\theta(\tau) - \log R(x) - \log P_B(\tau \mid x)$$

    (`eq:tb_residual_training`).

    Attributes:
        penalty: $\ell$.
    """

    by_trajectory: ClassVar[bool] = True

    penalty: Penalty = Squared()

    def residuals(
        self, env: AbstractEnv, flow: Flow, paths: Trajectories
    ) -> tuple[Float[Array, " rows"], PathLogProbs]:
        probs = log_probs(env, flow, paths)
        return flow.log_z + surplus(env, paths, probs), probs


class LogVariance(AbstractObjective):
    r"""The variance of $\log Z$'s estimates (VarGrad; Zhang et al., 2023).

    Trajectory balance with $\log Z$ at its best for each batch, the mean of
    $\log R(x) + \log P_B(\tau \mid x) - \log q_\theta(\tau)$. So it leaves the parameter
    $\log Z$ where it is.

    Attributes:
        penalty: $\ell$.
    """

    penalty: Penalty = Squared()

    def residuals(
        self, env: AbstractEnv, flow: Flow, paths: Trajectories
    ) -> tuple[Float[Array, " rows"], PathLogProbs]:
        probs = log_probs(env, flow, paths)
        found = surplus(env, paths, probs)
        return found - summed(equal_share(jnp.mean(found))), probs


class DetailedBalance(AbstractObjective):
    r"""$\delta_t = \log F(s_t) + \log P_F(s_{t+1} \mid s_t) - \log F(s_{t+1})
    - \log P_B(s_t \mid s_{t+1})$ (Bengio et al., 2023), each step with the same share.

    Attributes:
        penalty: $\ell$.
        forward_looking: whether the learned flow is the factor beside the reward of the
            partial object (Pan et al., 2023).
    """

    learns_flows: ClassVar[bool] = True

    penalty: Penalty = Squared()
    forward_looking: bool = False

    def residuals(
        self, env: AbstractEnv, flow: Flow, paths: Trajectories
    ) -> tuple[Float[Array, " rows"], PathLogProbs]:
        phi, probs = potentials(env, flow, paths, self.forward_looking)
        return (phi[:-1] - phi[1:]).ravel(), probs

    def shares(self, paths: Trajectories) -> Float[Array, " rows"]:
        return shared(paths.live)


class SubTrajectoryBalance(AbstractObjective):
    r"""Every stretch from $s_i$ to $s_j$, with a share in proportion to $\lambda^{j - i}$.

    $\lambda \to 0$ is detailed balance and $\lambda \to \infty$ trajectory balance (Madan et
    al., 2023).

    Attributes:
        penalty: $\ell$.
        decay: $\lambda$.
        forward_looking: as in `DetailedBalance`.
    """

    learns_flows: ClassVar[bool] = True

    penalty: Penalty = Squared()
    decay: float = 0.9
    forward_looking: bool = False

    def __check_init__(self):
        if not 0 < self.decay < float("inf"):
            raise ValueError(f"decay must be positive and finite, got {self.decay}")

    def residuals(
        self, env: AbstractEnv, flow: Flow, paths: Trajectories
    ) -> tuple[Float[Array, " rows"], PathLogProbs]:
        phi, probs = potentials(env, flow, paths, self.forward_looking)
        start, end = _stretches(paths)
        return (phi[start] - phi[end]).ravel(), probs

    def shares(self, paths: Trajectories) -> Float[Array, " rows"]:
        start, end = _stretches(paths)
        length, inside = (end - start)[:, None], end[:, None] <= paths.lengths
        # Relative to the heaviest, so that no power overflows.
        log_decay = jnp.log(self.decay)
        heaviest = jnp.maximum(log_decay, log_decay * paths.lengths)
        return shared(jnp.where(inside, jnp.exp(log_decay * length - heaviest), 0.0))


def _stretches(paths: Trajectories) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(len(paths.actions) + 1, 1)


def potentials(
    env: AbstractEnv, flow: Flow, paths: Trajectories, looking: bool
) -> tuple[Float[Array, "points n"], PathLogProbs]:
    r"""$\varphi_t$ above, constant after the end."""
    probs = log_probs(env, flow, paths)
    flows = jax.vmap(jax.vmap(lambda state: log_flow(env, flow, state, looking)))(paths.states)
    gained = jnp.cumsum(probs.steps - probs.back_steps, axis=0)
    return flows - jnp.pad(gained, ((1, 0), (0, 0))), probs
