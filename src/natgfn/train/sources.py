"""Where the trajectories of an update come from: rollouts, or a memory of earlier ones."""

from abc import abstractmethod
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from ..envs.base import AbstractEnv
from ..objectives import Batch
from ..policies import Flow
from ..sampling import AbstractProposal, Buffer, Trajectories, retrace, rollback, rollout
from ..statespace import require_space

PRIORITIES = ("reward", "loss", "teacher", "none")


class AbstractSource(eqx.Module):
    """Draws the trajectories of each update, and learns from them."""

    @abstractmethod
    def init(self, env: AbstractEnv, flow: Flow, *, key: PRNGKeyArray) -> PyTree:
        """What it remembers before the first update."""

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
        """The batch with the weights of its trajectories: one, unless the proposal drew them."""
        fresh = self.is_fresh(memory, step)
        weights = [jnp.where(fresh, x, 1.0) for x in (batch.weights, batch.omega)]
        return eqx.tree_at(lambda b: [b.weights, b.omega], batch, weights)

    @abstractmethod
    def learn(self, env: AbstractEnv, batch: Batch, memory: PyTree, step: Int[Array, ""]) -> PyTree:
        """What it remembers after that update."""


class Fresh(AbstractSource):
    """New trajectories from the proposal for every update."""

    def init(self, env, flow, *, key):
        return None

    def draw(self, env, flow, proposal, num, memory, step, *, key):
        return rollout(env, flow.forward, proposal, num, key=key)

    def learn(self, env, batch, memory, step):
        return memory


class Paths(NamedTuple):
    """What `Recall` remembers: the actions of trajectories, and how many it has seen."""

    actions: Int[Array, "capacity times"]
    lengths: Int[Array, " capacity"]
    seen: Int[Array, ""]


class Recall(AbstractSource):
    r"""Trajectories as they were drawn, from a circular buffer (`app:sachs_dag_details`).

    Before each update, new ones replace the oldest; then as many are drawn from all of them,
    uniformly and without replacement. No $\mu$ drew such a batch: its weights are one.

    Attributes:
        capacity: of the buffer.
    """

    capacity: int = 2_000

    def __check_init__(self):
        if self.capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {self.capacity}")

    def init(self, env, flow, *, key):
        actions = jnp.zeros((self.capacity, env.max_steps), jnp.int32)
        return Paths(actions, actions[:, 0], jnp.array(0))

    def gather(self, env, flow, proposal, num, memory, *, key):
        if num > self.capacity:
            raise ValueError(f"capacity must be at least the batch, {num}, got {self.capacity}")
        new = rollout(env, flow.forward, proposal, num, key=key)
        place = (memory.seen + jnp.arange(num)) % self.capacity
        return Paths(
            memory.actions.at[place].set(new.actions.T),
            memory.lengths.at[place].set(new.lengths),
            memory.seen + num,
        )

    def draw(self, env, flow, proposal, num, memory, step, *, key):
        filled = jnp.arange(self.capacity) < memory.seen
        _, picked = jax.lax.top_k(jnp.where(filled, jax.random.uniform(key, filled.shape), -1), num)
        return retrace(env, memory.actions[picked].T, memory.lengths[picked])

    def is_fresh(self, memory, step):
        return jnp.array(False)

    def learn(self, env, batch, memory, step):
        return memory


class Replay(AbstractSource):
    r"""New trajectories and remembered objects, in turn.

    Every second update draws objects from a `sampling.Buffer`, unless that is still empty, and
    a path to each from the backward policy. There is no $\mu$ that drew such a batch, so it
    counts as on-policy: the weights $w_i$ and $\omega_i$ of Algorithm 1 are set to one.

    Attributes:
        priority: what ranks the objects: `reward`, `loss` (the squared residual when the
            object came), `teacher` (what `Teacher` is rewarded for), or `none`.
        capacity: of the buffer; a tenth of all objects by default.
    """

    priority: str = "reward"
    capacity: int | None = None

    def __check_init__(self):
        if self.priority not in PRIORITIES:
            raise ValueError(
                f"priority must be one of {', '.join(PRIORITIES)}, got {self.priority!r}"
            )
        if self.capacity is not None and self.capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {self.capacity}")

    def init(self, env, flow, *, key):
        tenth = max(require_space(env, "replay of objects").num_terminal // 10, 1)
        return Buffer.empty(tenth if self.capacity is None else self.capacity)

    def draw(self, env, flow, proposal, num, memory, step, *, key):
        def fresh():
            return rollout(env, flow.forward, proposal, num, key=key)

        again = partial(replay, env, flow, memory, num, key=key)
        return jax.lax.cond(self.is_fresh(memory, step), fresh, again)

    def is_fresh(self, memory, step):
        return memory.is_empty | (step % 2 == 0)

    def learn(self, env, batch, memory, step):
        remember = partial(self.remember, env, batch.paths.last, batch.balance, memory)
        return jax.lax.cond(self.is_fresh(memory, step), remember, lambda: memory)

    def remember(
        self,
        env: AbstractEnv,
        ends: Int[Array, " n"],
        residuals: Float[Array, " n"],
        memory: Buffer,
    ) -> Buffer:
        """Insert the objects at the ends of trajectories with these residuals."""
        priorities = {
            "reward": jax.vmap(env.log_reward)(ends),
            "loss": residuals**2,
            "teacher": teacher_reward(residuals),
            "none": jnp.zeros_like(residuals),
        }
        space = require_space(env, "replay of objects")
        return memory.insert(ends - space.num_inner, priorities[self.priority])


class Mixed(AbstractSource):
    """New trajectories and remembered objects in every update: a batch of each, together.

    An update then has twice the trajectories of one of `Replay`, and takes about twice as long. All
    weights are one, as those of `Replay` are for what it remembers.

    Attributes:
        replay: the buffer.
    """

    replay: Replay = Replay()

    def init(self, env, flow, *, key):
        return self.replay.init(env, flow, key=key)

    def draw(self, env, flow, proposal, num, memory, step, *, key):
        new_key, known_key = jax.random.split(key)
        fresh = partial(rollout, env, flow.forward, proposal, num)
        again = partial(replay, env, flow, memory, num, key=known_key)
        known = jax.lax.cond(memory.is_empty, partial(fresh, key=known_key), again)
        new = fresh(key=new_key)
        return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), new, known)

    def is_fresh(self, memory, step):
        return jnp.array(False)

    def learn(self, env, batch, memory, step):
        new = batch.size // 2
        return self.replay.remember(env, batch.paths.last[:new], batch.balance[:new], memory)


def replay(
    env: AbstractEnv, flow: Flow, memory: Buffer, num: int, *, key: PRNGKeyArray
) -> Trajectories:
    """Draw objects from a buffer, and a path to each."""
    draw_key, path_key = jax.random.split(key)
    ends = require_space(env, "replay of objects").num_inner + memory.draw(num, key=draw_key)
    return rollback(env, flow.backward, ends, key=path_key)


def teacher_reward(residuals: Float[Array, " n"]) -> Float[Array, " n"]:
    r"""$\log(1 + \varepsilon + (1 + C\, 1\{\delta < 0\})\, \delta^2)$: how much is to be learnt.

    A negative residual is that of an object that is sampled too rarely; it counts twenty
    times. Kim et al. (2025) have the opposite sign of $\delta$.
    """
    return jnp.log(1 + 1e-3 + jnp.where(residuals < 0, 20.0, 1.0) * residuals**2)
