"""New trajectories beside paths to objects that were found elsewhere."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from ..envs import AbstractEnv, State
from ..policies import Flow
from ..sampling import AbstractProposal, Trajectories, rollback, rollout
from .base import AbstractSource


class Known(AbstractSource):
    """Half of every batch leads to known objects, along paths that the backward policy draws.

    A sampler forgets what it does not draw; what others have found, such as Markov chains, it is
    shown in every update. All weights are one, as no proposal drew the batch.

    Attributes:
        objects: terminal states along a leading axis; those drawn from the target are best.
    """

    objects: State

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
        objects = jax.tree.map(jnp.asarray, self.objects)
        count = len(jax.tree.leaves(objects)[0])
        picked = jax.random.randint(pick_key, (num // 2,), 0, count)
        ends = jax.tree.map(lambda x: x[picked], objects)
        known = rollback(env, flow.backward, ends, key=path_key)
        new = rollout(env, flow.forward, proposal, num - num // 2, key=new_key)
        return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), new, known)

    def is_fresh(self, memory: None, step: Int[Array, ""]) -> Bool[Array, ""]:
        return jnp.array(False)
