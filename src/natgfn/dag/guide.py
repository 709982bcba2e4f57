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

The sums have $3^K$ terms for $K$ candidates a child: all other variables, or, where these are
many, those that say most about the child. Each of the rest is taken to join independently of all
others, with the log-odds $g_{ij} = w_j(S^* + i) - w_j(S^*)$ of joining the best set $S^*$ of
candidates: $\Lambda_j$ has a factor $1 + e^{g_{ij}}$ where it can, and $e^{g_{ij}}$ where it has.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..envs.dags import AbstractDags, Dag
from ..policies import AbstractPolicy
from .subsets import check_memory, indicators


class Guide(AbstractPolicy):
    r"""The logits above: nothing to learn.

    Floats are kept as the bits of float32: integers, which no training touches.

    Attributes:
        bits: $\log \Lambda_j$ of the candidates, for every interval of sets. A digit to base 3 for
            each candidate, the first lowest, is 0 if it cannot be a parent, 1 if it can become
            one, and 2 if it is one.
        power: what the digit of each source counts for each target; 0 if it is no candidate.
        gains: $g$, also as bits.
    """

    bits: Int[np.ndarray, "d intervals"]
    power: Int[np.ndarray, "d d"]
    gains: Int[np.ndarray, "d d"]

    def __call__(self, state: Dag) -> Float[Array, " actions"]:
        size = len(self.bits)
        off_diagonal = np.nonzero(~np.eye(size, dtype=bool))
        digit = jnp.where(state.edges, 2, jnp.where(state.reached, 0, 1))
        power, rest = jnp.asarray(self.power), self.power == 0
        place = jnp.sum(digit * power, axis=0)
        table, gains = (
            jax.lax.bitcast_convert_type(jnp.asarray(x), jnp.float32)
            for x in (self.bits, self.gains)
        )
        child = jnp.arange(size)
        now = table[child, place]
        edge = table[child, place + power] - now
        edge += jnp.where(rest, jax.nn.log_sigmoid(gains), 0.0)
        stop = jnp.sum(table[child, jnp.sum(jnp.where(digit == 2, 2, 0) * power, axis=0)] - now)
        stop += jnp.sum(jnp.where(rest & (digit == 1), jax.nn.log_sigmoid(-gains), 0.0))
        count = jnp.sum(state.edges)
        # Invalid actions are masked by whoever asked.
        logits = jnp.append(edge[off_diagonal] - jnp.log(1.0 + count), stop)
        return jnp.where(jnp.isfinite(logits), logits, 0.0)

    @classmethod
    def of(cls, env: AbstractDags, candidates: int | None = None) -> "Guide":
        """With so many candidates a child: all other variables, unless given."""
        size = env.size
        number = size - 1 if candidates is None else min(candidates, size - 1)
        check_memory(f"a guide for {size} variables", 4 * size * 3**number)
        power, gains = np.zeros((size, size), np.int32), np.zeros((size, size), np.float32)
        table = np.empty((size, 3**number), np.float32)
        for child in range(size):
            chosen = _candidates(env, child, number)
            power[chosen, child] = 3 ** np.arange(number)
            sets = np.tile(env.always[:, child], (2**number, 1))
            sets[:, chosen] |= indicators(np.arange(2**number), number).astype(bool)
            weights = env.local(child, sets)
            table[child] = _intervals(weights)
            if number < size - 1:
                full = np.sum(sets[weights > -np.inf], axis=1).max()
                room = np.sum(sets, axis=1) < full
                best = sets[np.argmax(np.where(room, weights, -np.inf))]
                gains[:, child] = _gains(env, child, best)
        return cls(table.view(np.int32), power, gains.view(np.int32))


def _intervals(weights: Float[np.ndarray, " sets"]) -> Float[np.ndarray, " intervals"]:
    r"""$\log \Lambda$ of one child."""
    count = len(weights).bit_length() - 1
    table = weights.reshape((2,) * count)
    for axis in range(count):
        without, having = np.moveaxis(table, axis, 0)
        table = np.stack([without, np.logaddexp(without, having), having], axis=axis)
    return table.ravel()


def _candidates(env: AbstractDags, child: int, number: int) -> Int[np.ndarray, " number"]:
    """Those that raise the weight most, one after another, given those that did before.

    So a parent of a child comes after that child, and the Markov blanket is complete.
    """
    others = np.flatnonzero(np.arange(env.size) != child)
    if number == len(others):
        return others
    now = env.always[:, child]
    gains, chosen = _gains(env, child, now), np.array([child])
    while len(chosen) <= number:
        best = np.setdiff1d(others, chosen)
        best = best[np.argmax(gains[best])]
        chosen = np.append(chosen, best)
        if gains[best] > 0:
            more = now | (np.arange(env.size) == best)
            after = _gains(env, child, more)
            if np.any(after > -np.inf):  # there is room for another
                now, gains = more, after
    return np.sort(chosen[1:])


def _gains(
    env: AbstractDags, child: int, parents: Bool[np.ndarray, " d"]
) -> Float[np.ndarray, " d"]:
    """What each variable adds to the weight; minus infinity where it cannot be added."""
    before, *after = env.local(child, np.vstack([parents, parents | np.eye(env.size, dtype=bool)]))
    return np.where(parents, -np.inf, np.array(after) - before)


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
