"""New trajectories and remembered objects in one batch."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from ..envs import AbstractEnv
from ..objectives import Batch
from ..policies import Flow
from ..sampling import AbstractProposal, Buffer, Trajectories, rollout
from .base import AbstractSource
from .replay import Replay, revisit


class Mixed(AbstractSource):
    """New trajectories and remembered objects in every update: a batch of each, together.

    An update then has twice the trajectories of one of `Replay`, and takes about twice as long. All
    weights are one, as those of `Replay` are for what it remembers.

    Attributes:
        replay: the buffer.
    """

    replay: Replay = Replay()

    def init(self, env: AbstractEnv, flow: Flow, *, key: PRNGKeyArray) -> Buffer:
        return self.replay.init(env, flow, key=key)

    def draw(
        self,
        env: AbstractEnv,
        flow: Flow,
        proposal: AbstractProposal,
        num: int,
        memory: Buffer,
        step: Int[Array, ""],
        *,
        key: PRNGKeyArray,
    ) -> Trajectories:
        new_key, known_key = jax.random.split(key)
        fresh = partial(rollout, env, flow.forward, proposal, num)
        again = partial(revisit, env, flow, memory, num, key=known_key)
        known = jax.lax.cond(memory.is_empty, partial(fresh, key=known_key), again)
        new = fresh(key=new_key)
        return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), new, known)

    def is_fresh(self, memory: Buffer, step: Int[Array, ""]) -> Bool[Array, ""]:
        return jnp.array(False)

    def learn(self, env: AbstractEnv, batch: Batch, memory: Buffer, step: Int[Array, ""]) -> Buffer:
        new = batch.size // 2
        ends = jax.tree.map(lambda x: x[:new], batch.paths.last)
        return self.replay.remember(env, ends, batch.balance[:new], memory)
