"""New trajectories beside paths to objects that are known without them."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from ..envs import AbstractEnv, State
from ..policies import Flow
from ..sampling import AbstractProposal, Trajectories, rollback, rollout
from ..statespace import require_space
from .base import AbstractSource


class Known(AbstractSource):
    """Half of every batch leads to known objects, along paths that the backward policy draws.

    A sampler forgets what it does not draw; what others have found, such as Markov chains, or what
    a list of all states holds, it is shown in every update. All weights are one, as no proposal
    drew the batch. A batch of one is new.

    Attributes:
        objects: terminal states along a leading axis, each drawn as often as the others; those
            drawn from the target are best. By default all objects of an enumerated environment.
    """

    objects: State | None = None

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
        new_key, pick_key, path_key = jax.random.split(key, 3)
        new = rollout(env, flow.forward, proposal, num - num // 2, key=new_key)
        if num == 1:
            return new
        ends = self._pick(env, num // 2, pick_key)
        known = rollback(env, flow.backward, ends, key=path_key)
        return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), new, known)

    def _pick(self, env: AbstractEnv, num: int, key: PRNGKeyArray) -> State:
        if self.objects is None:
            space = require_space(env, "Known without objects", "sources.Mixed")
            return jax.random.randint(key, (num,), space.num_inner, space.num_states, jnp.int32)
        objects = jax.tree.map(jnp.asarray, self.objects)
        picked = jax.random.randint(key, (num,), 0, len(jax.tree.leaves(objects)[0]))
        return jax.tree.map(lambda x: x[picked], objects)

    def is_fresh(self, memory: None, step: Int[Array, ""]) -> Bool[Array, ""]:
        return jnp.array(False)
