"""Adaptive Teacher (Kim et al., 2025): a second sampler that looks for what the first lacks."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..envs.base import AbstractEnv
from ..objectives import Batch
from ..optim import Adam
from ..policies import AbstractDesign, Flow, Network
from ..sampling import Buffer, OnPolicy, log_probs, rollout
from .sources import AbstractSource, Replay, replay, teacher_reward


class Lesson(NamedTuple):
    """What a teacher remembers."""

    buffer: Buffer
    flow: Flow
    optimiser: PyTree


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

    def init(self, env, flow, *, key):
        forward = self.policy(env, key=key)
        teacher = Flow(forward, flow.backward, jnp.zeros_like(flow.log_z))
        buffer = self.replay.init(env, flow, key=key)
        parameters: Any = eqx.filter(teacher, eqx.is_inexact_array)
        return Lesson(buffer, teacher, self.rule.transform().init(parameters))

    def draw(self, env, flow, proposal, num, memory, step, *, key):
        branches = (
            lambda: rollout(env, flow.forward, proposal, num, key=key),
            lambda: replay(env, flow, memory.buffer, num, key=key),
            lambda: rollout(env, memory.flow.forward, OnPolicy(), num, key=key),
            lambda: replay(env, flow, memory.buffer, num, key=key),
        )
        return jax.lax.switch(jnp.where(memory.buffer.is_empty, 0, step % 4), branches)

    def is_fresh(self, memory, step):
        return memory.buffer.is_empty | (step % 4 == 0)

    def learn(self, env, batch, memory, step):
        buffer = self.replay.learn(env, batch, memory.buffer, step)
        params, static = eqx.partition(memory.flow, eqx.is_inexact_array)

        def loss(params):
            return jnp.mean(teacher_residuals(env, eqx.combine(params, static), batch) ** 2)

        gradient = jax.grad(loss)(params)
        updates, optimiser = self.rule.transform().update(gradient, memory.optimiser, params)
        return Lesson(buffer, eqx.apply_updates(memory.flow, updates), optimiser)


def teacher_residuals(env: AbstractEnv, teacher: Flow, batch: Batch) -> Float[Array, " n"]:
    """Trajectory balance of the teacher, on the student's trajectories and residuals."""
    probs = log_probs(env, teacher, batch.paths)
    target = jnp.log(teacher_reward(batch.balance) + 1e-8)
    return teacher.log_z + probs.forward - target - probs.backward
