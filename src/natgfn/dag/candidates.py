r"""Parents of each variable that are summed over, where there are too many variables for all sets.

A child may have any parents among its $K$ candidates, and one parent besides: these sets are
*covered*. Their weights are a table, and graphs all of whose parent sets are covered are what
`envs.Partitions` builds and `mcmc` visits. With $K = d - 1$ that is every graph.

**Which candidates.** Greedily those that raise the weight of the child most, one after another,
given those that did before; parents that it must have come first.

**What is missed.** A graph with one set $S \cup \{s, t\}$ that is not covered comes from a covered
one by adding $t$, or by adding $s$. So all graphs with one such set have, beside those that are
covered, the weight
$$\tfrac12\, E \sum_j \sum_t e^{w_j(\mathrm{Pa}_j \cup t) - w_j(\mathrm{Pa}_j)}$$
over covered graphs drawn from their posterior, children $j$ with a parent that is no candidate, and
variables $t$ that are no candidates either and no descendants of $j$. That is the first term of a
series, not a bound: graphs with two such sets, or with three parents besides, are not in it.
"""

from typing import Literal, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int

from ..envs import Partitions
from ..errors import NatgfnError, require_whole
from . import graphs as of_graphs
from .data import Data
from .priors import Prior, power_of
from .scores import AbstractScore
from .subsets import indicators, log_sums_over_subsets, subset_totals

MOST = 64
"""Variables: sets of them are the bits of a number."""

ENTRIES = 2**22
"""Weights in the tables of all children, at most, by default."""


class Weights(eqx.Module):
    """$w_j$ of any set of parents, computed when it is asked for, in float64.

    Attributes:
        data: the table.
        score: how well a child's data fit its parents.
        prior: what is known of the graph.
        power: of the likelihood.
    """

    data: Data
    score: AbstractScore
    prior: Prior
    power: float

    @classmethod
    def of(
        cls,
        data: Data,
        score: AbstractScore,
        prior: Prior,
        temperature: float | Literal["paper"] = 1.0,
    ) -> "Weights":
        if len(data.names) > MOST:
            raise NatgfnError(
                f"expected at most {MOST} variables, got {len(data.names)}: leave some out"
            )
        return cls(data, score, prior, power_of(temperature, data))

    @property
    def size(self) -> int:
        return len(self.data.names)

    def local(self, child: int, parents: Bool[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        r"""$w_j$ of sets of parents; $-\infty$ where a set is not allowed."""
        odds, required = self.prior.edges(self.data.names)
        bits = np.int64(1) << np.arange(self.size)
        sets, own = np.where(parents, bits, 0).sum(axis=1), bits[child]
        # The empty set of parents, which all others are relative to, comes last.
        without = np.append(sets, 0)
        both = self.score.log_marginals(self.data, np.append(without | own, without), child)
        scores = np.subtract(*np.split(both, 2))
        scores = scores[:-1] - scores[-1]
        found = self.power * scores + np.where(parents, odds[:, child], 0.0).sum(axis=1)
        allowed = ~parents[:, child] & np.all(parents[:, required[:, child]], axis=1)
        if self.prior.max_parents is not None:
            allowed &= parents.sum(axis=1) <= self.prior.max_parents
        return np.where(allowed, found, -np.inf)

    def table(
        self, child: int, candidates: Int[np.ndarray, " K"], others: Int[np.ndarray, " others"]
    ) -> Float[np.ndarray, "slots sets"]:
        r"""$w_j(S \cup s)$ of all sets $S$ of candidates, with no other and with each other."""
        odds, required = self.prior.edges(self.data.names)
        scores = self.score.around(self.data, child, candidates, others)
        prior = subset_totals(odds[candidates, child])
        table = self.power * (scores - scores[0, 0]) + prior
        table[1:] += odds[others, child][:, None]
        sets = np.arange(table.shape[1])
        needed = int(required[candidates, child] @ (1 << np.arange(len(candidates))))
        table[:, sets & needed != needed] = -np.inf
        if self.prior.max_parents is not None:
            count = np.bitwise_count(sets) + (np.arange(len(table)) > 0)[:, None]
            table[count > self.prior.max_parents] = -np.inf
        return table


class Candidates(eqx.Module):
    """The weights of all covered sets.

    Attributes:
        weights: of any set.
        env: the construction of covered graphs, which has the table.
    """

    weights: Weights
    env: Partitions

    @classmethod
    def of(cls, weights: Weights, number: int | None = None) -> "Candidates":
        """So many candidates a child; by default as many as fit into `ENTRIES`."""
        size = weights.size
        if number is None:
            number = usual_number(size, weights.data.discrete)
        else:
            require_whole("candidates", number, 1)
            number = min(number, size - 1)
        chosen = np.stack([_choose(weights, child, number) for child in range(size)])
        others = [np.setdiff1d(np.arange(size), [j, *row]) for j, row in enumerate(chosen)]
        tables = [weights.table(j, chosen[j], others[j]) for j in range(size)]
        return cls(weights, Partitions(np.stack(tables), chosen))

    @property
    def names(self) -> tuple[str, ...]:
        return self.weights.data.names

    @property
    def covers_all(self) -> bool:
        """Whether every graph is covered."""
        return self.env.others.shape[1] <= 1

    def draw(
        self, layers: Int[np.ndarray, "n d"], rng: np.random.Generator
    ) -> tuple[Int[np.ndarray, "n d d"], Float[np.ndarray, " n"]]:
        """A graph for each root partition, from their posterior, and its log-weight.

        Args:
            layers: the number of the layer of each variable.
            rng: of the draws.
        """
        count, size = layers.shape
        graphs, logs = np.zeros((count, size, size), np.int8), np.zeros(count)
        for child in range(size):
            own = layers[:, child, None]
            before, last = layers < own, layers == own - 1
            slots, sets = self._parents(child, before, last, rng)
            logs += self.env.log_weights[child, slots, sets]
            graphs[:, self.env.candidates[child], child] = indicators(
                sets, self.env.candidates.shape[1]
            )
            (rows,) = np.nonzero(slots)
            graphs[rows, self.env.others[child][slots[rows] - 1], child] = 1
        return graphs, logs

    def _parents(
        self,
        child: int,
        before: Bool[np.ndarray, "n d"],
        last: Bool[np.ndarray, "n d"],
        rng: np.random.Generator,
    ) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """For each row a slot and a set of candidates: within `before`, and meeting `last`."""
        chosen, others = self.env.candidates[child], self.env.others[child]
        bits = 1 << np.arange(len(chosen))
        inside, meets = before[:, chosen] @ bits, last[:, chosen] @ bits
        none = np.zeros((len(before), 1), bool)
        there = np.concatenate([~none, before[:, others]], axis=1)
        met = np.concatenate([none, last[:, others]], axis=1) | ~before.any(axis=1, keepdims=True)
        sums = self.env.log_weights[child].copy()
        log_sums_over_subsets(sums)
        logs = np.where(
            met, sums[:, inside].T, _log_minus(sums[:, inside], sums[:, inside & ~meets]).T
        )
        logs = np.where(there, logs, -np.inf)
        cumulative = np.cumsum(np.exp(logs - logs.max(axis=1, keepdims=True)), axis=1)
        uniform = rng.random(len(logs)) * cumulative[:, -1]
        slots = np.argmax(cumulative > uniform[:, None], axis=1)
        sets = np.zeros(len(logs), np.int64)
        for slot in np.unique(slots):
            (rows,) = np.nonzero(slots == slot)
            sets[rows] = _draw_sets(
                self.env.log_weights[child, slot], inside[rows], meets[rows], met[rows, slot], rng
            )
        return slots, sets

    def missed(self, graphs: Int[np.ndarray, "n d d"]) -> "Missed":
        """What graphs with one set that is not covered would add.

        Args:
            graphs: covered, drawn from their posterior.
        """
        below = of_graphs.ancestors(graphs)
        weight, edges = np.zeros(self.weights.size), graphs.mean(axis=0)
        added = np.zeros_like(edges)
        for child, others in enumerate(self.env.others):
            (rows,) = np.nonzero(graphs[:, others, child].any(axis=1))
            if not len(rows):
                continue
            sets, place = np.unique(graphs[rows, :, child] > 0, axis=0, return_inverse=True)
            now = self.weights.local(child, sets)
            for other in others:
                more = sets.copy()
                more[:, other] = True
                gain = np.exp(self.weights.local(child, more) - now) * ~sets[:, other]
                each = gain[place.ravel()] * ~below[rows, child, other] / (2 * len(graphs))
                weight[child] += each.sum()
                added[:, child] += each @ more[place.ravel()]
        moved = (edges + added) / (1 + weight) - edges
        return Missed(float(weight.sum()), float(np.abs(moved).max()))


class Missed(NamedTuple):
    """What candidates leave out, to first order."""

    weight: float
    """Of graphs with one set of parents that is not covered, beside that of all covered ones."""
    edge: float
    """The most that such sets of a child would change the probability of an edge to it."""


def usual_number(size: int, discrete: bool = False) -> int:
    """The most candidates for which the tables have `ENTRIES` weights; a 16th if discrete."""
    entries = ENTRIES // 16 if discrete else ENTRIES
    return max(k for k in range(1, size) if k == 1 or size * (size - k) * 2**k <= entries)


def _choose(weights: Weights, child: int, number: int) -> Int[np.ndarray, " number"]:
    """The candidates of a child.

    What raises the weight of the child given those before includes its children, and, given these,
    their other parents: its Markov blanket.
    """
    size = weights.size
    others = np.flatnonzero(np.arange(size) != child)
    if number == len(others):
        return others
    _, required = weights.prior.edges(weights.data.names)
    now = required[:, child].copy()
    chosen = [child, *np.flatnonzero(now).tolist()]
    if len(chosen) > number + 1:
        raise NatgfnError(
            f"{weights.data.names[child]} has {len(chosen) - 1} required parents, more than its "
            f"{number} candidates: raise --candidates"
        )
    gains = _gains(weights, child, now)
    while len(chosen) <= number:
        rest = np.setdiff1d(others, chosen)
        best = int(rest[np.argmax(gains[rest])])
        chosen.append(best)
        if gains[best] > 0:
            more = now | (np.arange(size) == best)
            after = _gains(weights, child, more)
            if np.any(after > -np.inf):  # there is room for another
                now, gains = more, after
    return np.sort(np.array(chosen[1:], np.int64))


def _gains(
    weights: Weights, child: int, parents: Bool[np.ndarray, " d"]
) -> Float[np.ndarray, " d"]:
    """What each variable adds to the weight; minus infinity where it cannot be added."""
    each = np.vstack([parents, parents | np.eye(weights.size, dtype=bool)])
    before, *after = weights.local(child, each)
    return np.where(parents, -np.inf, np.array(after) - before)


def _log_minus(
    more: Float[np.ndarray, "*n"], less: Float[np.ndarray, "*n"]
) -> Float[np.ndarray, "*n"]:
    r"""$\log(e^a - e^b)$ for $a \ge b$."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found = more + np.log(-np.expm1(np.minimum(less - more, 0.0)))
    return np.where(more > -np.inf, found, -np.inf)


def _draw_sets(
    log_weights: Float[np.ndarray, " sets"],
    inside: Int[np.ndarray, " n"],
    meets: Int[np.ndarray, " n"],
    met: Bool[np.ndarray, " n"],
    rng: np.random.Generator,
) -> Int[np.ndarray, " n"]:
    """Subsets of `inside`, in proportion to weight; those that meet `meets`, unless already `met`.

    The highest candidate is decided first. With the candidates from the k-th on decided, the sums
    over the rest are those of the k-th stage of the sums over all subsets.
    """
    number = len(log_weights).bit_length() - 1
    stages = [log_weights]
    for place in range(number):
        pairs = stages[-1].reshape(-1, 2, 1 << place)
        stages.append(
            np.stack([pairs[:, 0], np.logaddexp(pairs[:, 0], pairs[:, 1])], axis=1).ravel()
        )

    def left(stage: int, sets: np.ndarray, met: np.ndarray) -> np.ndarray:
        apart = sets & ~(meets & (1 << stage) - 1)
        sums = stages[stage]
        return np.where(met, sums[sets], _log_minus(sums[sets], sums[apart]))

    sets = inside.copy()
    for place in range(number - 1, -1, -1):
        bit = 1 << place
        without, now = sets & ~bit, met | (meets & bit > 0)
        log_with, log_without = left(place, sets, now), left(place, without, met)
        with np.errstate(invalid="ignore"):
            share = 1 / (1 + np.exp(log_without - log_with))
        # Where rounding leaves nothing of either, a set must still meet.
        share = np.where(np.isnan(share), meets & bit > 0, share)
        joins = (sets & bit > 0) & (rng.random(len(sets)) < share)
        sets, met = np.where(joins, sets, without), np.where(joins, now, met)
    return sets
