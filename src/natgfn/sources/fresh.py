"""New trajectories for every update."""

from jaxtyping import Array, Int, PRNGKeyArray

from ..envs import AbstractEnv
from ..policies import Flow
from ..sampling import AbstractProposal, Trajectories, rollout
from .base import AbstractSource


class Fresh(AbstractSource):
    """New trajectories from the proposal for every update."""

    def draw(
        self,
        env: AbstractEnv,
        flow: Flow,
        proposal: AbstractProposal,
        num: int,
        memory: None,
        step: Int[Array, ""],
        *,
        key: PRNGKeyArray,
    ) -> Trajectories:
        return rollout(env, flow.forward, proposal, num, key=key, keep=True)
