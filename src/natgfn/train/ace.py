r"""ACE (reconstructed): a second sampler that explores where the first puts too little flow.

After Dall'Antonia et al. (2026), from its abstract and what others report of it; there is no
public code. Two samplers share a backward policy. A trajectory is under-allocated by the
canonical one if its residual of trajectory balance, $\delta$, is below $\log \alpha$. There the
explorer learns trajectory balance for $R^\beta$; elsewhere it only learns to keep away (divergent
trajectory balance):
$$\ell_E = 1\{\delta < \log \alpha\}\, \delta_E^2
         + 1\{\delta \ge \log \alpha\}\, \mathrm{softplus}(\delta_E - \log \eta)^2.$$
The canonical sampler learns from both halves of a batch, weighted $1 - w$ and $w$ with
$w = Z_E / (Z + Z_E)$.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..envs.base import AbstractEnv
from ..objectives import Batch
from ..optim import Euclidean
from ..policies import AbstractDesign, Flow, Table, Uniform
from ..sampling import OnPolicy, log_probs, rollout
from .sources import AbstractSource


class Explorer(NamedTuple):
    """What ACE remembers."""

    flow: Flow
    """Its backward policy is not used: that of the canonical sampler serves both."""
    optimiser: PyTree


class ACE(AbstractSource):
    r"""Half of each batch from the forward policy, half from an explorer.

    Attributes:
        policy: what the explorer's forward policy looks like.
        rule: how the explorer learns.
        threshold: $\alpha$.
        exponent: $\beta$.
        ceiling: $\eta$, below which flow where there is enough already counts as none.
        least: what $w$ is at least.
        most: what $w$ is at most.
    """

    policy: AbstractDesign = Table()
    rule: Euclidean = Euclidean()
    threshold: float = 0.5
    exponent: float = 1.0
    ceiling: float = 0.01
    least: float = 0.05
    most: float = 0.5

    def __check_init__(self):
        for name in ("threshold", "exponent", "ceiling"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")
        if not 0 <= self.least <= self.most < 1:
            raise ValueError(
                f"least and most must be in this order and in [0, 1), got {self.least} and "
                f"{self.most}"
            )

    def init(self, env, flow, *, key):
        explorer = Flow(
            self.policy(env, key=key), Uniform.backward(env), jnp.zeros_like(flow.log_z)
        )
        parameters: Any = eqx.filter(explorer, eqx.is_inexact_array)
        return Explorer(explorer, self.rule.transform().init(parameters))

    def draw(self, env, flow, proposal, num, memory, step, *, key):
        own_key, other_key = jax.random.split(key)
        own = rollout(env, flow.forward, proposal, num - num // 2, key=own_key)
        other = rollout(env, memory.flow.forward, OnPolicy(), num // 2, key=other_key)
        return jax.tree.map(lambda x, y: jnp.concatenate([x, y], axis=1), own, other)

    def weigh(self, flow, batch, memory, step):
        """The Fisher is that of the canonical sampler's own half."""
        others = batch.size // 2
        own = batch.size - others
        share = jax.nn.sigmoid(memory.flow.log_z - flow.log_z)
        share = jnp.clip(jax.lax.stop_gradient(share), self.least, self.most)
        is_own = jnp.arange(batch.size) < own
        mine = (1 - share) * batch.size / own * batch.weights
        weights = jnp.where(is_own, mine, share * batch.size / max(others, 1))
        omega = jnp.where(is_own, batch.omega * batch.size / own, 0.0)
        return eqx.tree_at(lambda b: [b.weights, b.omega], batch, [weights, omega])

    def learn(self, env, batch, memory, step):
        params, static = eqx.partition(memory.flow, eqx.is_inexact_array)

        def loss(params):
            flow = eqx.combine(params, static)
            return jnp.mean(explorer_losses(self, env, flow, batch))

        gradient = jax.grad(loss)(params)
        updates, optimiser = self.rule.transform().update(gradient, memory.optimiser, params)
        return Explorer(eqx.apply_updates(memory.flow, updates), optimiser)


def explorer_losses(ace: ACE, env: AbstractEnv, explorer: Flow, batch: Batch) -> Float[Array, " n"]:
    r"""$\ell_E$ of each trajectory."""
    log_reward = jax.vmap(env.log_reward)(batch.paths.last)
    forward = log_probs(env, explorer, batch.paths).forward
    delta = explorer.log_z + forward - batch.probs.backward - ace.exponent * log_reward
    away = jax.nn.softplus(delta - jnp.log(ace.ceiling))
    return jnp.where(batch.balance < jnp.log(ace.threshold), delta, away) ** 2
