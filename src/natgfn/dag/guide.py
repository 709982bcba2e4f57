r"""A head start for a policy: what local weights say of each pair of variables.

With $P_B$ uniform, the edges of a graph come in any order: as if each had a time of its own,
uniform in $[0, 1]$. The flow from a graph $G$ with $k$ edges is an integral over the time $x$ that
is left,
$$F(G) = \sum_{G' \supseteq G} R(G') \Big/ \binom{|G'|}{k}
  = k \int_0^1 (1 - x)^{k - 1} \sum_{G' \supseteq G} R(G')\, x^{|G'| - k}\, dx,$$
and the guide estimates the sum in three steps.

1. *Each child by itself.* Child $j$ has the parents $S_j$ and can still get those of $C_j$ without
a cycle. From $\Lambda_j = \sum_{S_j \subseteq T \subseteq S_j \cup C_j} e^{w_j(T)}$, and the same
with $i$ in $S_j$ or without it in $C_j$, come the probability $p_{ij}$ that $i$ becomes a parent,
$1 - p_{ij}$, and $q_j$, that none does.

2. *Not both ways.* A pair has the weights $p_{ij} (1 - p_{ji})$ and $p_{ji} (1 - p_{ij})$ of its
edges, and $(1 - p_{ij}) (1 - p_{ji})$ of neither; their sum is $z_{ij}$. So $\prod_j q_j /
\prod_{i<j} z_{ij}$ is the probability that nothing is added: the product of the
$q_j' = q_j \prod_i z_{ij}^{-1/2}$. The probability of one edge or the other is shared between them
like $p_{ij} : p_{ji}$, not like their weights, which are far too sure of a direction: each child
takes the others to go on as if they had no part in cycles. The shares are $\hat p_{ij}$.

3. *Any order.* The parents that $j$ will get, $\sum_i \hat p_{ij}$ on average, are taken as none,
or one and a Poisson number of others: $g_j(x) = q_j' + (1 - q_j')\, x\, e^{-\nu_j (1 - x)}$ is the
mean of $x$ to the power of their number. The logits are
$$\log \hat p_{ij} + \log \int_0^1 \frac{(1 - x)^k \prod_l g_l(x)}
  {1 - (\hat p_{ij} + \hat p_{ji}) (1 - x)}\, dx, \qquad \sum_j \log q_j'.$$

A policy that starts there has to learn only what pairs owe to each other.

$\Lambda_j$ has $3^{d-1}$ values.
"""

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..envs import AbstractEnv, Dag, Dags, Identical, Partition, Partitions, State
from ..policies import AbstractDesign, AbstractPolicy, Network
from .subsets import check_memory, subset_totals

_TIMES, _WEIGHTS = (x.astype(np.float32) / 2 for x in np.polynomial.legendre.leggauss(32))
_TIMES += 0.5


class Guide(AbstractPolicy):
    r"""The logits above: nothing to learn.

    Floats are kept as the bits of float32: integers, which no training touches.

    Attributes:
        bits: $\log \Lambda_j$ for every interval of sets of others. A digit to base 3 for each of
            them, the first lowest, is 0 if it cannot be a parent, 1 if it can become one, and 2 if
            it is one.
        power: what the digit of each source counts for each target; 0 for itself.
        required: how many edges every graph has.
    """

    bits: Int[np.ndarray, "d intervals"]
    power: Int[np.ndarray, "d d"]
    required: int = eqx.field(static=True)

    def __call__(self, state: Dag) -> Float[Array, " actions"]:
        size = len(self.bits)
        joins, stays, nothing = self._alone(state)
        one, neither = joins + stays.T, stays + stays.T
        pair = jnp.logaddexp(one, one.T)
        total = jnp.logaddexp(pair, neither)
        nothing = jnp.minimum(nothing - jnp.sum(total, axis=0) / 2, -1e-6)
        share = jnp.where(joins > -jnp.inf, joins - jnp.logaddexp(joins, joins.T), -jnp.inf)
        joins = share + pair - total
        logits = joins + _log_order(joins, nothing, jnp.sum(state.edges) - self.required)
        off_diagonal = np.nonzero(~np.eye(size, dtype=bool))
        # Invalid actions are masked by whoever asked.
        logits = jnp.append(logits[off_diagonal], jnp.sum(nothing))
        return jnp.where(jnp.isfinite(logits), logits, 0.0)

    def _alone(
        self, state: Dag
    ) -> tuple[Float[Array, "d d"], Float[Array, "d d"], Float[Array, " d"]]:
        r"""$\log p$, $\log(1 - p)$ and $\log q$."""
        table = jax.lax.bitcast_convert_type(jnp.asarray(self.bits), jnp.float32)
        power = jnp.asarray(self.power)
        digit = jnp.where(state.edges, 2, jnp.where(state.reached, 0, 1))
        child, place = jnp.arange(len(table)), jnp.sum(digit * power, axis=0)
        now = table[child, place]
        joins = jnp.where(digit == 1, table[child, place + power] - now, -jnp.inf)
        stays = jnp.where(digit == 1, table[child, place - power] - now, 0.0)
        alone = table[child, jnp.sum(jnp.where(digit == 2, 2, 0) * power, axis=0)] - now
        return joins, stays, alone

    @classmethod
    def of(cls, env: Dags) -> "Guide":
        size = env.size
        check_memory(f"a guide for {size} variables", 4 * size * 3 ** (size - 1))
        power = np.zeros((size, size), np.int32)
        table = np.empty((size, 3 ** (size - 1)), np.float32)
        for child in range(size):
            others = np.flatnonzero(np.arange(size) != child)
            power[others, child] = 3 ** np.arange(size - 1)
            needed = int(env.always[:, child] @ (1 << np.arange(size)))
            table[child] = _intervals(env.log_weights[child, subset_totals(1 << others) | needed])
        return cls(table.view(np.int32), power, len(env.required))


def _log_order(
    joins: Float[Array, "d d"], nothing: Float[Array, " d"], count: Int[Array, ""]
) -> Float[Array, "d d"]:
    r"""The logarithm of the integral, by quadrature; linear between pairs of chances $1 - 2^{-n}$.

    Args:
        joins: $\log \hat p$.
        nothing: $\log q'$.
        count: $k$.
    """
    chances, some = jnp.exp(joins), -jnp.expm1(nothing)
    more = jnp.maximum(jnp.sum(chances, axis=0) / some - 1, 0.0)
    time = jnp.asarray(_TIMES)[:, None]
    children = jnp.log(jnp.exp(nothing) + some * time * jnp.exp(-more * (1 - time)))
    logs = jnp.sum(children, axis=1) + count * jnp.log1p(-_TIMES) + jnp.log(_WEIGHTS)
    steps = jnp.arange(9.0)
    pairs = -jnp.log(1 - (1 - 2**-steps) * (1 - time))
    known = jax.nn.logsumexp(logs[:, None] + pairs, axis=0)
    step = -jnp.log2(jnp.maximum(1 - chances - chances.T, 2 ** -steps[-1]))
    return jnp.maximum(1 - jnp.abs(step[..., None] - steps), 0.0) @ known


def _intervals(weights: Float[np.ndarray, " sets"]) -> Float[np.ndarray, " intervals"]:
    r"""$\log \Lambda$ of one child."""
    count = len(weights).bit_length() - 1
    table = weights.reshape((2,) * count)
    for axis in range(count):
        without, having = np.moveaxis(table, axis, 0)
        table = np.stack([without, np.logaddexp(without, having), having], axis=axis)
    return table.ravel()


class HeadStart(AbstractPolicy):
    """The logits that root partitions start from (`envs.Partitions.head_start`).

    Attributes:
        of: the environment, static: nothing trains its arrays.
    """

    of: Identical = eqx.field(static=True)

    def __call__(self, state: Partition) -> Float[Array, " actions"]:
        assert isinstance(self.of.env, Partitions)
        return self.of.env.head_start(state)


class GuidedPolicy(AbstractPolicy):
    """A policy that learns what to add to the logits of a guide."""

    guide: Guide | HeadStart
    learned: AbstractPolicy

    def __call__(self, state: State) -> Float[Array, " actions"]:
        return self.guide(state) + self.learned(state)

    @property
    def by_visits(self) -> bool:
        return self.learned.by_visits

    def many(
        self, states: State, live: Bool[Array, " n"] | None = None
    ) -> Float[Array, "n actions"]:
        return self.guide.many(states, live) + self.learned.many(states, live)


class Guided(AbstractDesign):
    """A network, or another design, that corrects a `Guide`, or the `HeadStart` of partitions.

    Attributes:
        learned: what is trained.
    """

    learned: AbstractDesign = Network(128, 2)

    def __call__(
        self, env: AbstractEnv, *, key: PRNGKeyArray, outputs: int | None = None
    ) -> AbstractPolicy:
        if outputs is not None:
            return self.learned(env, key=key, outputs=outputs)
        if isinstance(env, Partitions):
            return GuidedPolicy(HeadStart(Identical(env)), self.learned(env, key=key))
        if not isinstance(env, Dags):
            raise ValueError(f"a guide is for graphs, got {type(env).__name__}: use its network")
        return GuidedPolicy(_guide(Identical(env)), self.learned(env, key=key))


@lru_cache(maxsize=1)
def _guide(of: Identical) -> Guide:
    """The same for every seed of a run: it takes long to make."""
    assert isinstance(of.env, Dags)
    return Guide.of(of.env)
