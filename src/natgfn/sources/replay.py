"""Remembered objects, with new paths to them."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..envs import AbstractEnv, State
from ..errors import require_whole
from ..objectives import Batch
from ..policies import Flow
from ..sampling import AbstractProposal, Buffer, Trajectories, rollback, rollout
from ..statespace import StateSpace
from .base import AbstractSource

PRIORITIES = ("reward", "loss", "teacher", "none")

CAPACITY = 5_000
"""Objects in a buffer, at most, where it is not known how many objects there are."""


class Replay(AbstractSource):
    r"""New trajectories and remembered objects, in turn.

    Every second update draws objects from a `sampling.Buffer`, unless that is still empty, and
    a path to each from the backward policy. There is no $\mu$ that drew such a batch, so it
    counts as on-policy: the weights $w_i$ and $\omega_i$ of Algorithm 1 are set to one.

    Attributes:
        priority: what ranks the objects: `reward`, `loss` (the squared residual when the
            object came), `teacher` (what `Teacher` is rewarded for), or `none`.
        capacity: of the buffer, in objects; by default a tenth of all objects of an enumerated
            environment, and 5,000 elsewhere.
    """

    priority: str = "reward"
    capacity: int | None = None

    def __check_init__(self):
        if self.priority not in PRIORITIES:
            raise ValueError(
                f"priority must be one of {', '.join(PRIORITIES)}, got {self.priority!r}"
            )
        if self.capacity is not None:
            require_whole("capacity", self.capacity, 1)

    def init(self, env: AbstractEnv, flow: Flow, *, key: PRNGKeyArray) -> Buffer:
        usual = max(env.num_terminal // 10, 1) if isinstance(env, StateSpace) else CAPACITY
        return Buffer.empty(env, usual if self.capacity is None else self.capacity)

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
        def fresh():
            return rollout(env, flow.forward, proposal, num, key=key)

        again = partial(revisit, env, flow, memory, num, key=key)
        return jax.lax.cond(self.is_fresh(memory, step), fresh, again)

    def is_fresh(self, memory: Buffer, step: Int[Array, ""]) -> Bool[Array, ""]:
        return memory.is_empty | (step % 2 == 0)

    def learn(self, env: AbstractEnv, batch: Batch, memory: Buffer, step: Int[Array, ""]) -> Buffer:
        remember = partial(self.remember, env, batch.paths.last, batch.balance, memory)
        return jax.lax.cond(self.is_fresh(memory, step), remember, lambda: memory)

    def remember(
        self, env: AbstractEnv, ends: State, residuals: Float[Array, " n"], memory: Buffer
    ) -> Buffer:
        """Insert the objects at the ends of trajectories with these residuals."""
        priorities = {
            "reward": jax.vmap(env.log_reward)(ends),
            "loss": residuals**2,
            "teacher": teacher_reward(residuals),
            "none": jnp.zeros_like(residuals),
        }
        return memory.insert(ends, priorities[self.priority])


def revisit(
    env: AbstractEnv, flow: Flow, memory: Buffer, num: int, *, key: PRNGKeyArray
) -> Trajectories:
    """Draw objects from a buffer, and a path to each."""
    draw_key, path_key = jax.random.split(key)
    return rollback(env, flow.backward, memory.draw(num, key=draw_key), key=path_key)


def teacher_reward(residuals: Float[Array, " n"]) -> Float[Array, " n"]:
    r"""$\log(1 + \varepsilon + (1 + C\, 1\{\delta < 0\})\, \delta^2)$: how much is to be learnt.

    A negative residual is that of an object that is sampled too rarely; it counts twenty
    times. Kim et al. (2025) have the opposite sign of $\delta$.
    """
    return jnp.log(1 + 1e-3 + jnp.where(residuals < 0, 20.0, 1.0) * residuals**2)
