r"""A head start for a policy: what the local weights say when cycles are forgotten.

In a partial graph $G$ with $k$ edges, let child $j$ have the parents $S_j$, and let $C_j$ be those
that it can still get without a cycle. If children chose their parents independently of each other,
$$\Lambda_j = \sum_{S_j \subseteq T \subseteq S_j \cup C_j} e^{w_j(T)}$$
would be the weight of what can become of $j$, and the flow from $G$, with a uniform $P_B$,
$$F(G) = \sum_{G' \supseteq G} R(G') \Big/ \binom{|G'|}{k}
\approx \prod_j \Lambda_j \quad \text{when } G \text{ is nearly complete}.$$
Then $P_F(i \to j \mid G) / P_F(\mathrm{stop} \mid G) = F(G + i \to j) / ((k + 1)\, R(G))$ has the
logits
$$\log \Lambda_j(S_j + i) - \log \Lambda_j(S_j) - \log(k + 1), \qquad
\sum_j w_j(S_j) - \log \Lambda_j(S_j).$$
The first is the probability that $i$ becomes a parent of $j$. A policy that starts there has to
learn only what children owe to each other.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..envs.dags import Dag, Dags
from ..policies import AbstractPolicy
from .subsets import check_memory


class Guide(AbstractPolicy):
    r"""The logits above: nothing to learn.

    Attributes:
        bits: $\log \Lambda_j$ for every interval of sets, as the bits of float32: integers, which
            no training touches. A digit to base 3 for each variable but $j$, the first lowest, is
            0 if the variable cannot be a parent, 1 if it can become one, and 2 if it is one.
    """

    bits: Int[np.ndarray, "d intervals"]

    def __call__(self, state: Dag) -> Float[Array, " actions"]:
        size = len(self.bits)
        off_diagonal = np.nonzero(~np.eye(size, dtype=bool))
        source, target = off_diagonal
        digit = jnp.where(state.edges, 2, jnp.where(state.reached, 0, 1))
        power = np.zeros((size, size), np.int32)
        power[off_diagonal] = 3 ** (source - (source > target))
        place = jnp.sum(digit * power, axis=0)
        table = jax.lax.bitcast_convert_type(jnp.asarray(self.bits), jnp.float32)
        child = jnp.arange(size)
        now = table[child, place]
        edge = (table[child, place + power] - now)[off_diagonal]
        stop = jnp.sum(table[child, jnp.sum(jnp.where(digit == 2, 2, 0) * power, axis=0)] - now)
        count = jnp.sum(state.edges)
        # Invalid actions are masked by whoever asked.
        logits = jnp.append(edge - jnp.log(1.0 + count), stop)
        return jnp.where(jnp.isfinite(logits), logits, 0.0)

    @classmethod
    def of(cls, env: Dags) -> "Guide":
        check_memory(f"a guide for {env.size} variables", 4 * env.size * 3 ** (env.size - 1))
        rows = [_intervals(row, child) for child, row in enumerate(env.log_weights)]
        return cls(np.stack(rows).astype(np.float32).view(np.int32))


def _intervals(row: Float[np.ndarray, " sets"], child: int) -> Float[np.ndarray, " intervals"]:
    r"""$\log \Lambda$ of one child."""
    count = (len(row) - 1).bit_length() - 1
    table = row[np.arange(len(row)) >> child & 1 == 0].reshape((2,) * count)
    for axis in range(count):
        without, having = np.moveaxis(table, axis, 0)
        table = np.stack([without, np.logaddexp(without, having), having], axis=axis)
    return table.ravel()


class Guided(AbstractPolicy):
    """A policy that learns what to add to the logits of a guide."""

    guide: Guide
    learned: AbstractPolicy

    def __call__(self, state: Dag) -> Float[Array, " actions"]:
        return self.guide(state) + self.learned(state)

    @property
    def by_rows(self) -> bool:
        return self.learned.by_rows

    def many(self, states: Dag, live: Bool[Array, " n"] | None = None):
        return self.guide.many(states, live) + self.learned.many(states, live)
