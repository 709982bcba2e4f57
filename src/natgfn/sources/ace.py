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

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..envs import AbstractEnv
from ..objectives import Batch
from ..optim import Euclidean
from ..policies import AbstractDesign, Flow, Uniform, usual_design
from ..sampling import AbstractProposal, OnPolicy, Trajectories, log_probs, rollout
from .base import AbstractSource
from .companion import Companion


class ACE(AbstractSource):
    r"""Half of each batch from the forward policy, half from an explorer.

    Attributes:
        policy: what the explorer's forward policy looks like; by default a table where the
            environment is enumerated, else a network.
        rule: how the explorer learns.
        threshold: $\alpha$.
        exponent: $\beta$.
        ceiling: $\eta$: where the canonical sampler has enough flow, the explorer's is pushed
            below this multiple of $P_B(\tau \mid x)\, R(x)^\beta$.
        least: the smallest $w$.
        most: the largest $w$.
    """

    policy: AbstractDesign | None = None
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

    def init(self, env: AbstractEnv, flow: Flow, *, key: PRNGKeyArray) -> Companion:
        design = usual_design(env) if self.policy is None else self.policy
        # Its backward policy is not used: that of the canonical sampler serves both.
        explorer = Flow(design(env, key=key), Uniform().backward(env), jnp.zeros_like(flow.log_z))
        return Companion.start(explorer, self.rule)

    def draw(
        self,
        env: AbstractEnv,
        flow: Flow,
        proposal: AbstractProposal,
        num: int,
        memory: Companion,
        step: Int[Array, ""],
        *,
        key: PRNGKeyArray,
    ) -> Trajectories:
        own_key, other_key = jax.random.split(key)
        own = rollout(env, flow.forward, proposal, num - num // 2, key=own_key)
        other = rollout(env, memory.flow.forward, OnPolicy(), num // 2, key=other_key)
        return jax.tree.map(lambda x, y: jnp.concatenate([x, y], axis=1), own, other)

    def weigh(self, flow: Flow, batch: Batch, memory: Companion, step: Int[Array, ""]) -> Batch:
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

    def learn(
        self, env: AbstractEnv, batch: Batch, memory: Companion, step: Int[Array, ""]
    ) -> Companion:
        return memory.improve(
            self.rule, lambda flow: jnp.mean(explorer_losses(self, env, flow, batch))
        )


def explorer_losses(ace: ACE, env: AbstractEnv, explorer: Flow, batch: Batch) -> Float[Array, " n"]:
    r"""$\ell_E$ of each trajectory."""
    log_reward = jax.vmap(env.log_reward)(batch.paths.last)
    forward = log_probs(env, explorer, batch.paths).forward
    delta = explorer.log_z + forward - batch.probs.backward - ace.exponent * log_reward
    away = jax.nn.softplus(delta - jnp.log(ace.ceiling))
    return jnp.where(batch.balance < jnp.log(ace.threshold), delta, away) ** 2
