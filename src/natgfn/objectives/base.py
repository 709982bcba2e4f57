"""What an objective is: residuals that vanish at the target, and a penalty on them."""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..envs import AbstractEnv, State
from ..policies import Flow
from ..sampling import PathLogProbs, Trajectories


class AbstractObjective(eqx.Module):
    r"""$\frac1N \sum_i w_i \sum_k c_{ik}\, \ell(\delta_{ik})$ over the residuals of a batch.

    A trajectory may have one residual or many; they come as rows $(k, i)$, raveled. The residuals
    and the penalty on them are separate: solvers that work on residuals need the first,
    gradients the second. The Fisher knows of neither.
    """

    penalty: eqx.AbstractVar[Callable[[Float[Array, ""]], Float[Array, ""]]]
    r"""$\ell$, from one number to one number."""

    learns_flows: ClassVar[bool] = False
    """Whether it needs the flow of every state, not only that of the source."""

    by_trajectory: ClassVar[bool] = False
    r"""Whether the rows are those of trajectory balance: $\nabla \delta_i$ is the score of
    trajectory $i$, and depends on no other."""

    @abstractmethod
    def residuals(
        self, env: AbstractEnv, flow: Flow, paths: Trajectories
    ) -> tuple[Float[Array, " rows"], PathLogProbs]:
        """All residuals, and the log-probabilities they were made of."""

    def shares(self, paths: Trajectories) -> Float[Array, " rows"]:
        """$c$: what each residual counts. Those of a trajectory add up to one."""
        return jnp.ones(paths.lengths.size)

    def potential(
        self, env: AbstractEnv, flow: Flow, paths: Trajectories
    ) -> Float[Array, " n"] | None:
        r"""$f(x_i)$, where the objective has a functional of the terminal law besides, and $f$ is
        its gradient in that law."""
        return None


def surplus(env: AbstractEnv, paths: Trajectories, probs: PathLogProbs) -> Float[Array, " n"]:
    r"""$\log q_\theta(\tau) - \log R(x) - \log P_B(\tau \mid x)$: $-\log Z$, at the target."""
    return probs.forward - jax.vmap(env.log_reward)(paths.last) - probs.backward


def shared(counts: Bool[Array, "k n"] | Float[Array, "k n"]) -> Float[Array, " rows"]:
    """What each counts, as a share of its trajectory."""
    return (counts / jnp.sum(counts, axis=0)).ravel()


def log_flow(env: AbstractEnv, flow: Flow, state: State, looking: bool) -> Float[Array, ""]:
    r"""$\log F(s)$: learned, but for $\log Z$ at the source and $\log R$ at the ends.

    Args:
        env: the environment.
        flow: with learned state flows.
        state: any state.
        looking: whether what is learned is the factor beside the reward so far.
    """
    assert flow.states is not None
    inner = flow.states(state)[0]
    if looking:
        inner = inner + env.log_partial(state)
    source = ~jnp.any(env.backward_mask(state))
    ended = env.is_terminal(state)
    return jnp.where(ended, env.log_reward(state), jnp.where(source, flow.log_z, inner))
