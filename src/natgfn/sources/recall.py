"""Trajectories as they were drawn, from a circular buffer (`app:sachs_dag_details`)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from ..envs import AbstractEnv
from ..errors import require_whole
from ..objectives import Batch
from ..policies import Flow
from ..sampling import AbstractProposal, Trajectories, retrace, rollout
from .base import AbstractSource


class Paths(NamedTuple):
    """What `Recall` remembers: the actions of trajectories, and how many it has seen."""

    actions: Int[Array, "capacity times"]
    lengths: Int[Array, " capacity"]
    seen: Int[Array, ""]


class Recall(AbstractSource):
    r"""Whole trajectories, new ones and earlier ones alike.

    Before each update, new ones replace the oldest; then as many are drawn from all of them,
    uniformly and without replacement. No $\mu$ drew such a batch: its weights are one.

    Attributes:
        capacity: of the buffer, in trajectories.
    """

    capacity: int = 2_000

    def __check_init__(self):
        require_whole("capacity", self.capacity, 1)

    def init(self, env: AbstractEnv, flow: Flow, *, key: PRNGKeyArray) -> Paths:
        actions = jnp.zeros((self.capacity, env.max_steps), jnp.int32)
        return Paths(actions, actions[:, 0], jnp.array(0))

    def gather(
        self,
        env: AbstractEnv,
        flow: Flow,
        proposal: AbstractProposal,
        num: int,
        memory: Paths,
        *,
        key: PRNGKeyArray,
    ) -> Paths:
        if num > self.capacity:
            raise ValueError(f"capacity must be at least the batch, {num}, got {self.capacity}")
        new = rollout(env, flow.forward, proposal, num, key=key)
        place = (memory.seen + jnp.arange(num)) % self.capacity
        return Paths(
            memory.actions.at[place].set(new.actions.T),
            memory.lengths.at[place].set(new.lengths),
            memory.seen + num,
        )

    def draw(
        self,
        env: AbstractEnv,
        flow: Flow,
        proposal: AbstractProposal,
        num: int,
        memory: Paths,
        step: Int[Array, ""],
        *,
        key: PRNGKeyArray,
    ) -> Trajectories:
        filled = jnp.arange(self.capacity) < memory.seen
        _, picked = jax.lax.top_k(jnp.where(filled, jax.random.uniform(key, filled.shape), -1), num)
        return retrace(env, memory.actions[picked].T, memory.lengths[picked])

    def is_fresh(self, memory: Paths, step: Int[Array, ""]) -> Bool[Array, ""]:
        return jnp.array(False)

    def learn(self, env: AbstractEnv, batch: Batch, memory: Paths, step: Int[Array, ""]) -> Paths:
        return memory
