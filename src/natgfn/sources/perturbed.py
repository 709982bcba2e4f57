"""Exploration by noise in the parameters (Plappert et al., 2018)."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

from ..envs import AbstractEnv
from ..objectives import Batch
from ..policies import AbstractPolicy, Flow
from ..sampling import AbstractProposal, Trajectories
from .base import AbstractSource
from .replay import Replay

_NOISE = 0x401


class Perturbed(AbstractSource):
    r"""Has a perturbed copy of the forward policy draw what another source would draw with it.

    One copy draws a whole batch, so that all steps of a trajectory deviate from the policy in the
    same direction and it reaches states far away; random actions (`sampling.UniformMixture`)
    cancel out over a few steps, or end the trajectory. No $\mu$ is known for such a batch: its
    weights are one.

    Attributes:
        source: what draws.
        noise: its standard deviation, in root mean squares of each array of parameters.
    """

    source: AbstractSource = Replay()
    noise: float = 0.02

    def __check_init__(self):
        if not 0 <= self.noise < float("inf"):
            raise ValueError(f"noise must be zero or positive and finite, got {self.noise}")

    def init(self, env: AbstractEnv, flow: Flow, *, key: PRNGKeyArray) -> PyTree:
        return self.source.init(env, flow, key=key)

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
        return self.source.gather(env, self.perturb(flow, key), proposal, num, memory, key=key)

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
        return self.source.draw(env, self.perturb(flow, key), proposal, num, memory, step, key=key)

    def is_fresh(self, memory: PyTree, step: Int[Array, ""]) -> Bool[Array, ""]:
        return jnp.array(False)

    def learn(self, env: AbstractEnv, batch: Batch, memory: PyTree, step: Int[Array, ""]) -> PyTree:
        return self.source.learn(env, batch, memory, step)

    def perturb(self, flow: Flow, key: PRNGKeyArray) -> Flow:
        """The same flow with another forward policy."""
        parameters, rest = eqx.partition(flow.forward, eqx.is_inexact_array)
        leaves, tree = jax.tree.flatten(parameters)
        keys = jax.random.split(jax.random.fold_in(key, _NOISE), len(leaves))
        moved = [
            x + self.noise * jnp.sqrt(jnp.mean(x**2)) * jax.random.normal(k, x.shape, x.dtype)
            for x, k in zip(leaves, keys, strict=True)
        ]
        forward: AbstractPolicy = eqx.combine(jax.tree.unflatten(tree, moved), rest)
        return eqx.tree_at(lambda f: f.forward, flow, forward)
