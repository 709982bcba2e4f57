"""What a source of trajectories is."""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

from ..envs import AbstractEnv
from ..objectives import Batch
from ..policies import Flow
from ..sampling import AbstractProposal, Trajectories


class AbstractSource(eqx.Module):
    """Draws the trajectories of each update, and learns from them."""

    in_expectation: ClassVar[bool] = False
    """Whether an update is made of expectations (`objectives.expected`), without trajectories."""

    def init(self, env: AbstractEnv, flow: Flow, *, key: PRNGKeyArray) -> PyTree:
        """What it remembers before the first update; nothing, unless a source says otherwise."""
        return None

    def gather(
        self,
        env: AbstractEnv,
        flow: Flow,
        proposal: AbstractProposal,
        num: int,
        memory: PyTree,
        *,
        key: PRNGKeyArray,
    ) -> PyTree:
        """What it remembers when it draws; for those that keep trajectories, with new ones."""
        return memory

    @abstractmethod
    def draw(
        self,
        env: AbstractEnv,
        flow: Flow,
        proposal: AbstractProposal,
        num: int,
        memory: PyTree,
        step: Int[Array, ""],
        *,
        key: PRNGKeyArray,
    ) -> Trajectories:
        """The trajectories of an update."""

    def is_fresh(self, memory: PyTree, step: Int[Array, ""]) -> Bool[Array, ""]:
        """Whether the proposal draws the trajectories of this update."""
        return jnp.array(True)

    def weigh(self, flow: Flow, batch: Batch, memory: PyTree, step: Int[Array, ""]) -> Batch:
        r"""The batch with the importance weights $w_i$ and $\omega_i$ that its trajectories have.

        Where the proposal $\mu$ drew them, those of the batch as it is; elsewhere no $\mu$ is
        known, and all are one.
        """
        fresh = self.is_fresh(memory, step)
        weights = [jnp.where(fresh, x, 1.0) for x in (batch.weights, batch.omega)]
        return eqx.tree_at(lambda b: [b.weights, b.omega], batch, weights)

    def learn(self, env: AbstractEnv, batch: Batch, memory: PyTree, step: Int[Array, ""]) -> PyTree:
        """What it remembers after that update."""
        return memory
