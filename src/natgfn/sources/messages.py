"""No trajectories: the objective in expectation."""

from typing import ClassVar, NoReturn

from jaxtyping import Array, Int, PRNGKeyArray

from ..envs import AbstractEnv
from ..objectives import Batch, Expected
from ..policies import Flow
from ..sampling import AbstractProposal
from .base import AbstractSource


class Messages(AbstractSource):
    """The gradient of trajectory balance without noise, by messages over the junction tree of
    `envs.Assignments` (`objectives.expected`). Nothing is drawn, whatever the batch."""

    in_expectation: ClassVar[bool] = True

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
    ) -> NoReturn:
        raise ValueError("sources.Messages draws no trajectories")

    def learn(
        self, env: AbstractEnv, batch: Batch | Expected, memory: None, step: Int[Array, ""]
    ) -> None:
        return memory
