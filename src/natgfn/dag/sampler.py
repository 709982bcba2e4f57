r"""A trained sampler of graphs, and how good it is.

A trajectory $\tau$ to the graph $G$ gives $\log w = \log R(G) + \log P_B(\tau \mid G) - \log
P_F(\tau)$, an estimate of $\log Z$ that does not vary where the sampler is exact. The mean of $w$
is $Z$, and averages over graphs weighted by $w$ are averages over the posterior, whatever the
sampler; the effective sample size $(\sum w)^2 / \sum w^2$ says how many exact samples they are
worth.
"""

from collections.abc import Sequence
from functools import cached_property

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float, Int
from scipy.special import logsumexp

from ..envs import AbstractEnv, Dags, State
from ..errors import require_whole
from ..objectives import surplus
from ..policies import Flow
from ..sampling import OnPolicy, log_probs, rollout
from .candidates import Candidates
from .exact import ExactPosterior
from .mcmc import mean_edges
from .metrics import largest_error, mean_error
from .posterior import AbstractPosterior

TOGETHER, MOST = 500, 2**27
"""Trajectories that are drawn together, at most, and the bytes of their states."""


class Draws(eqx.Module):
    r"""Independent graphs of a sampler.

    Attributes:
        graphs: adjacency matrices.
        layers: the root partition that each was drawn from, if there was one: the number of the
            layer of each variable.
        log_weights: $\log w$ of each.
        log_rewards: $\log R$ of each graph, in float64.
        residuals: of trajectory balance, with the learned $\log Z$ of its sampler.
    """

    graphs: Int[np.ndarray, "n d d"]
    log_weights: Float[np.ndarray, " n"]
    log_rewards: Float[np.ndarray, " n"]
    residuals: Float[np.ndarray, " n"]
    layers: Int[np.ndarray, "n d"] | None = None

    @classmethod
    def together(cls, parts: "Sequence[Draws]") -> "Draws":
        """Those of several samplers of the same law."""
        return jax.tree.map(lambda *x: np.concatenate(x), *parts)

    @property
    def log_z(self) -> float:
        return float(logsumexp(self.log_weights) - np.log(len(self.log_weights)))

    @property
    def shares(self) -> Float[np.ndarray, " n"]:
        """The weights, which add up to one."""
        return np.exp(self.log_weights - logsumexp(self.log_weights))

    @property
    def effective_samples(self) -> float:
        return float(1 / np.sum(self.shares**2))


class SampledPosterior(AbstractPosterior):
    r"""What a trained sampler draws. Nothing here is exact: `quality` says how far to trust it.

    Attributes:
        names: of the variables.
        target: the construction of graphs, edge by edge, or that of their root partitions, with the
            weights of the parents that each variable then draws.
        flows: the policies and the learned $\log Z$ of each seed.
        draws: graphs that training has not seen, as many of each seed; `edge_marginals` are their
            frequencies, or the mean probabilities given their root partitions.
        rejected: how many updates would have produced a NaN or an infinity, and were not made.
    """

    names: tuple[str, ...]
    target: Dags | Candidates
    flows: tuple[Flow, ...]
    draws: Draws
    rejected: int = 0

    @property
    def edge_marginals(self) -> pd.DataFrame:
        return self.frame(self._plain.copy())

    @property
    def corrected_marginals(self) -> pd.DataFrame:
        """The probabilities of edges with the sampler's error weighted away."""
        return self.frame(self._corrected.copy())

    # Asked for again and again, and over many partitions not quick.

    @cached_property
    def _plain(self) -> Float[np.ndarray, "d d"]:
        return self._mean(slice(None))

    @cached_property
    def _corrected(self) -> Float[np.ndarray, "d d"]:
        return self._mean(slice(None), self.draws.shares)

    def by_seed(self) -> Float[np.ndarray, "seeds d d"]:
        """The probabilities of edges of each seed's draws."""
        size = len(self.draws.graphs) // len(self.flows)
        return np.stack(
            [self._mean(slice(n * size, (n + 1) * size)) for n in range(len(self.flows))]
        )

    def _mean(
        self, which: slice, shares: Float[np.ndarray, " n"] | None = None
    ) -> Float[np.ndarray, "d d"]:
        """Over some draws, all alike unless they have shares."""
        graphs = self.draws.graphs[which]
        if shares is None:
            shares = np.full(len(graphs), 1 / len(graphs))
        if self.draws.layers is None:
            return np.einsum("n,nij->ij", shares, graphs)
        assert isinstance(self.target, Candidates)
        layers = jnp.asarray(self.draws.layers[which])
        return np.asarray(mean_edges(self.target.env, layers, jnp.asarray(shares)), float)

    @property
    def log_z(self) -> float:
        """Relative to the empty graph, from the weights of all draws."""
        return self.draws.log_z

    @property
    def expected_log_reward(self) -> float:
        return float(self.draws.log_rewards.mean())

    @property
    def offset(self) -> float:
        r"""What $\log R$ of the construction is relative to, itself relative to the empty graph."""
        return self.target.env.log_total if isinstance(self.target, Candidates) else 0.0

    def sample(self, count: int, *, seed: int = 0) -> Int[np.ndarray, "n d d"]:
        require_whole("count", count, 1)
        each = -(-count // len(self.flows))
        parts = [
            draw(self.target, flow, each, seed=seed + number).graphs
            for number, flow in enumerate(self.flows)
        ]
        return np.concatenate(parts)[:count]

    def top(self, count: int) -> tuple[Int[np.ndarray, "k d d"], Float[np.ndarray, " k"]]:
        """The most probable graphs among the draws; $R / Z$ with the estimated $Z$."""
        graphs, first = np.unique(self.draws.graphs, axis=0, return_index=True)
        rewards = self.draws.log_rewards[first]
        best = np.argsort(-rewards)[:count]
        return graphs[best], np.exp(rewards[best] - self.log_z)

    def quality(self) -> dict[str, float]:
        """What can be said without the exact posterior.

        Of a perfect sampler the effective sample share, of all draws, is one, and every other
        number is zero, `largest_difference_between_seeds` (of a probability of an edge) up to the
        noise of the draws.
        """
        residuals = self.draws.residuals
        found = {
            "held_out_residual_median_size": float(np.median(np.abs(residuals))),
            "held_out_residual_deviation": float(residuals.std()),
            "largest_correction_of_a_marginal": largest_error(
                self.edge_marginals.to_numpy(), self.corrected_marginals.to_numpy()
            ),
            "effective_sample_share": self.draws.effective_samples / len(self.draws.graphs),
            "rejected_updates": self.rejected,
        }
        if len(self.flows) > 1:
            apart = float(np.ptp(self.by_seed(), axis=0).max())
            found["largest_difference_between_seeds"] = apart
        return found

    def errors(self, exact: ExactPosterior) -> dict[str, float]:
        """The distance to the exact posterior; that of marginals includes the noise of draws."""
        truth = exact.edge_marginals.to_numpy()
        found, corrected = self.edge_marginals.to_numpy(), self.corrected_marginals.to_numpy()
        return {
            "largest_error_of_a_marginal": largest_error(found, truth),
            "mean_error_of_a_marginal": mean_error(found, truth),
            "largest_error_of_a_corrected_marginal": largest_error(corrected, truth),
            "expected_edges_error": self.expected_edges - exact.expected_edges,
            "expected_log_reward_error": self.expected_log_reward - exact.expected_log_reward,
            "log_z_error": self.log_z - exact.log_z,
            "learned_log_z_error": self.offset + float(self.flows[0].log_z) - exact.log_z,
        }


def draw(target: Dags | Candidates, flow: Flow, count: int, *, seed: int) -> Draws:
    """Independent graphs from the forward policy."""
    env = target.env if isinstance(target, Candidates) else target
    state = sum(np.asarray(x).nbytes for x in jax.tree.leaves(env.init()))
    together = min(TOGETHER, max(1, MOST // (state * (env.max_steps + 1))))
    key, starts = jax.random.key(seed), range(0, count, together)
    found = [_draw(env, flow, together, jax.random.fold_in(key, start)) for start in starts]
    ends, surpluses = jax.tree.map(lambda *x: np.concatenate(x)[:count], *found)
    surpluses = surpluses.astype(float)
    residuals = float(flow.log_z) + surpluses
    if isinstance(target, Candidates):
        layers, rng = ends.layer, np.random.default_rng(seed)
        graphs, log_rewards = target.draw(layers, rng)
        return Draws(graphs, target.env.log_total - surpluses, log_rewards, residuals, layers)
    edges = ends.edges
    return Draws(edges.astype(np.int8), -surpluses, target.log_rewards(edges), residuals)


@eqx.filter_jit
def _draw(
    env: AbstractEnv, flow: Flow, count: int, key: jax.Array
) -> tuple[State, Float[Array, " n"]]:
    paths = rollout(env, flow.forward, OnPolicy(), count, key=key)
    return paths.last, surplus(env, paths, log_probs(env, flow, paths))
