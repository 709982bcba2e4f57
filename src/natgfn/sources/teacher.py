"""Adaptive Teacher (Kim et al., 2025): a second sampler that looks for what the first lacks."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..envs import AbstractEnv
from ..objectives import Batch
from ..optim import Adam
from ..policies import AbstractDesign, Flow, Network
from ..sampling import AbstractProposal, Buffer, OnPolicy, Trajectories, log_probs, rollout
from .base import AbstractSource
from .companion import Companion
from .replay import Replay, revisit, teacher_reward


class Lesson(NamedTuple):
    """What a teacher remembers: objects, and itself."""

    buffer: Buffer
    teacher: Companion


class Teacher(AbstractSource):
    r"""Batches from the student, a buffer, a teacher, and the buffer again, in turn.

    The teacher is a GFlowNet too. Its reward is `teacher_reward` of the student's residual, and
    it learns from every batch by trajectory balance with a $\log Z$ of its own. Like replayed
    batches, its own count as on-policy.

    Attributes:
        policy: what the teacher's forward policy looks like.
        rule: how the teacher learns.
        replay: the buffer.
    """

    policy: AbstractDesign = Network()
    rule: Adam = Adam(1e-3, log_z_rate=0.1, clip=1.0)
    replay: Replay = Replay("teacher")

    def init(self, env: AbstractEnv, flow: Flow, *, key: PRNGKeyArray) -> Lesson:
        forward = self.policy(env, key=key)
        teacher = Flow(forward, flow.backward, jnp.zeros_like(flow.log_z))
        return Lesson(self.replay.init(env, flow, key=key), Companion.start(teacher, self.rule))

    def draw(
        self,
        env: AbstractEnv,
        flow: Flow,
        proposal: AbstractProposal,
        num: int,
        memory: Lesson,
        step: Int[Array, ""],
        *,
        key: PRNGKeyArray,
    ) -> Trajectories:
        forward = memory.teacher.flow.forward
        branches = (
            lambda: rollout(env, flow.forward, proposal, num, key=key),
            lambda: revisit(env, flow, memory.buffer, num, key=key),
            lambda: rollout(env, forward, OnPolicy(), num, key=key),
            lambda: revisit(env, flow, memory.buffer, num, key=key),
        )
        return jax.lax.switch(jnp.where(memory.buffer.is_empty, 0, step % 4), branches)

    def is_fresh(self, memory: Lesson, step: Int[Array, ""]) -> Bool[Array, ""]:
        return memory.buffer.is_empty | (step % 4 == 0)

    def learn(self, env: AbstractEnv, batch: Batch, memory: Lesson, step: Int[Array, ""]) -> Lesson:
        buffer = self.replay.learn(env, batch, memory.buffer, step)
        improved = memory.teacher.improve(
            self.rule, lambda flow: jnp.mean(teacher_residuals(env, flow, batch) ** 2)
        )
        return Lesson(buffer, improved)


def teacher_residuals(env: AbstractEnv, teacher: Flow, batch: Batch) -> Float[Array, " n"]:
    """Trajectory balance of the teacher, on the student's trajectories and residuals."""
    probs = log_probs(env, teacher, batch.paths)
    target = jnp.log(teacher_reward(batch.balance) + 1e-8)
    return teacher.log_z + probs.forward - target - probs.backward
