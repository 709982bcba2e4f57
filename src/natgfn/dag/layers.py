r"""Sums over all acyclic graphs, $Z = \sum_G \exp \sum_j w_j(\mathrm{Pa}_j)$, layer by layer.

A graph has one partition into layers: its sources, then what becomes a source once those are
removed, and so on. A vertex of the next layer $K$ has its parents among the vertices $U$ placed
so far, and at least one of them in the last layer $L \subseteq U$. So, with
$$B_j(U, L) = \sum_{\mathrm{Pa} \subseteq U,\, \mathrm{Pa} \cap L \ne \emptyset}
  e^{w_j(\mathrm{Pa})},$$
the total weight of the graphs on $U$ that end with $L$, and of all ways to complete them, are
$$f(U \cup K, K) = \sum_L f(U, L) \prod_{j \in K} B_j(U, L), \qquad
h(U, L) = \sum_K h(U \cup K, K) \prod_{j \in K} B_j(U, L),$$
and $Z = \sum_L f(V, L) = h(\emptyset, \emptyset)$. That is $4^d$ products, in one matrix of $2^d$
elements for each $U$, and $3^d$ numbers to keep.

**Accuracy.** Every term is positive: nothing cancels, unlike in the inclusion-exclusion over
sinks, which is $O(3^d)$ but alternates. $B$ too is summed without a difference: with $l$ the
highest vertex of $L$, sets that meet $L$ meet $L \setminus l$, or else contain $l$,
$$B_j(U, L) = B_j(U, L \setminus l) + A^l_j(U \setminus (L \setminus l)), \qquad
A^l_j(S) = \sum_{l \in \mathrm{Pa} \subseteq S} e^{w_j(\mathrm{Pa})}.$$
Numbers kept are logarithms; within the step of one $U$ they are relative to the largest. What
underflows there is negligible in $Z$: another $L'$ in place of $L$, or any parents in $U$ in
place of some that meet $L$, give other graphs of the same sum, with the larger weight. So the
error is the rounding of logarithms, some $10^{-16} |\log Z|$. Measured against integer
arithmetic (d = 8 to 11, $|\log Z|$ up to 3,600): $\log Z$ within 5e-13, probabilities within 1e-13;
on the steepest of these weights the alternating sum in doubles missed $\log Z$ by 19. Numbers of
graphs through d = 11 are right to 1e-14.

**Marginals.** Backwards, the share of $Z$ that passes through each term is handed down through
these sums to the parent sets: one pass gives $p(\mathrm{Pa}_j = S)$ for all children and sets.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import logsumexp

from ..progress import track
from .subsets import (
    check_memory,
    elements,
    indicators,
    log_sums_over_subsets,
    log_sums_over_supersets,
    subset_totals,
    subsets,
)


class Sums(NamedTuple):
    """What a step looks up."""

    within: Float[np.ndarray, "d sets"]
    r"""$\log \sum_{\mathrm{Pa} \subseteq S} e^{w_j(\mathrm{Pa})}$."""
    containing: Float[np.ndarray, "d d sets"]
    r"""$\log A^l_j(S)$, at `[l, j, S]`."""
    ternary: Int[np.ndarray, " sets"]
    r"""$\sum_{i \in S} 3^i$: the pair (U, L) is kept at `ternary[U] + ternary[L]`."""

    @property
    def everything(self) -> int:
        return len(self.ternary) - 1


class Step(NamedTuple):
    """All ways to go on from the vertices U."""

    last: Int[np.ndarray, " L"]
    """The subsets of U."""
    following: Int[np.ndarray, " K"]
    """The subsets of the rest; the empty one is no layer."""
    rest: Int[np.ndarray, " j"]
    """The vertices of the rest."""
    log_scale: Float[np.ndarray, " K"]
    r"""$\sum_{j \in K} \log \sum_{\mathrm{Pa} \subseteq U} e^{w_j}$, taken out of the others."""
    at: tuple[np.ndarray, np.ndarray, np.ndarray]
    """Where the last terms of B are in `Sums.containing`."""
    terms: Float[np.ndarray, "j L"]
    """The last term of each B."""
    some: Float[np.ndarray, "j L"]
    """B."""
    products: Float[np.ndarray, "K L"]
    """Of B, over the vertices of K."""


class Forward(NamedTuple):
    log_reached: Float[np.ndarray, " pairs"]
    r"""$\log f(U, L)$."""
    log_z: float


class Backward(NamedTuple):
    log_completions: Float[np.ndarray, " pairs"]
    r"""$\log h(U, L)$."""
    parent_sets: Float[np.ndarray, "d sets"]
    r"""$p(\mathrm{Pa}_j = S)$."""


def exact_memory(count: int) -> int:
    """The bytes that the sums over graphs of `count` vertices take."""
    return 8 * (2 * 3**count + (3 * count**2 + 3 * count) * 2**count)


def tabulate(log_weights: Float[np.ndarray, "d sets"]) -> Sums:
    """The sums over parent sets, before any graph is made."""
    count, size = log_weights.shape
    check_memory(f"the exact sum over graphs of {count} variables", exact_memory(count))
    sets = np.arange(size)
    containing = np.full((count, count, size), -np.inf)
    for parent in range(count):
        has = sets >> parent & 1 == 1
        containing[parent][:, has] = log_weights[:, has]
    log_sums_over_subsets(containing)
    within = log_weights.copy()
    log_sums_over_subsets(within)
    return Sums(within, containing, indicators(sets, count) @ 3 ** np.arange(count))


def step(sums: Sums, placed: int) -> Step:
    """The terms of all sums that start from the vertices `placed`."""
    last, following = subsets(placed), subsets(sums.everything ^ placed)
    rest = elements(sums.everything ^ placed)
    scale = sums.within[rest, placed]
    # The highest vertex. For the empty set it is 0, which is then not in S: the term is 0.
    top = np.maximum(np.frexp(last)[1] - 1, 0)
    at = (top, rest[:, None], placed & ~(last ^ 1 << top))
    if placed:
        terms = np.exp(sums.containing[at] - np.where(np.isfinite(scale), scale, 0.0)[:, None])
    else:
        terms = np.ones((len(rest), 1))  # a source has no parents
    some = terms.copy()
    half = 1
    while half < len(last):
        some[:, half : 2 * half] += some[:, :half]
        half *= 2
    products = np.empty((len(following), len(last)))
    products[0] = 1.0
    for place, factor in enumerate(some):
        half = 1 << place
        np.multiply(products[:half], factor, out=products[half : 2 * half])
    return Step(last, following, rest, subset_totals(scale), at, terms, some, products)


def forward(sums: Sums, *, progress: bool = False) -> Forward:
    """The weights of all beginnings, and of all graphs."""
    log_reached = np.full(3 ** len(sums.within), -np.inf)
    log_reached[0] = 0.0
    for placed in track(range(sums.everything), "forwards", shown=progress):
        log_here = log_reached[sums.ternary[placed] + sums.ternary[subsets(placed)]]
        largest = log_here.max()
        if largest == -np.inf:
            continue
        now = step(sums, placed)
        with np.errstate(divide="ignore"):
            log_sums = np.log(now.products @ np.exp(log_here - largest))
        target = sums.ternary[placed] + 2 * sums.ternary[now.following]
        log_reached[target[1:]] = (log_sums + largest + now.log_scale)[1:]
    ends = sums.ternary[-1] + sums.ternary
    return Forward(log_reached, float(np.asarray(logsumexp(log_reached[ends]))))


def log_following(
    sums: Sums, now: Step, placed: int, log_completions: Float[np.ndarray, " pairs"]
) -> Float[np.ndarray, " K"]:
    """The weight of all that may come once each layer has been chosen to follow."""
    pairs = sums.ternary[placed] + 2 * sums.ternary[now.following]
    values = now.log_scale + log_completions[pairs]
    values[0] = -np.inf
    return values


def backward(
    sums: Sums, log_weights: Float[np.ndarray, "d sets"], ahead: Forward, *, progress: bool = False
) -> Backward:
    """The weights of all completions, and the probability of every parent set."""
    count = len(log_weights)
    log_completions = np.full(3**count, -np.inf)
    log_completions[sums.ternary[-1] + sums.ternary] = 0.0
    share = np.zeros_like(sums.containing)
    sources = np.zeros(count)
    for placed in track(range(sums.everything - 1, -1, -1), "backwards", shown=progress):
        here = sums.ternary[placed] + sums.ternary[subsets(placed)]
        largest = ahead.log_reached[here].max()
        if largest == -np.inf:
            continue
        now = step(sums, placed)
        log_next = log_following(sums, now, placed, log_completions)
        highest = log_next.max()
        if highest == -np.inf:
            continue
        member = indicators(np.arange(len(now.following)), len(now.rest)).T
        member = np.concatenate([np.ones((1, len(now.following))), member])
        totals = (member * np.exp(log_next - highest)) @ now.products
        with np.errstate(divide="ignore"):
            log_completions[here] = np.log(totals[0]) + highest
        passing = totals[1:] * np.exp(ahead.log_reached[here] + highest - ahead.log_z)
        if placed == 0:
            sources[now.rest] = passing[:, 0]
            continue
        rate = np.divide(passing, now.some, out=np.zeros_like(passing), where=now.some > 0)
        half = len(now.last) // 2
        while half:
            rate[:, :half] += rate[:, half : 2 * half]
            half //= 2
        share[now.at] += rate * now.terms  # each L has a place of its own
    return Backward(log_completions, _parent_sets(sums, log_weights, share, sources))


def _parent_sets(
    sums: Sums,
    log_weights: Float[np.ndarray, "d sets"],
    share: Float[np.ndarray, "d d sets"],
    sources: Float[np.ndarray, " d"],
) -> Float[np.ndarray, "d sets"]:
    """Hand what each term $A^l_j(S)$ got down to the parent sets that it sums over."""
    probabilities = np.zeros_like(log_weights)
    sets = np.arange(log_weights.shape[1])
    for parent, (got, log_total) in enumerate(zip(share, sums.containing, strict=True)):
        with np.errstate(divide="ignore"):
            log_rate = np.log(got)
        np.subtract(log_rate, log_total, out=log_rate, where=got > 0)
        log_sums_over_supersets(log_rate)
        has = sets >> parent & 1 == 1
        probabilities[:, has] += np.exp(log_rate + log_weights)[:, has]
    probabilities[:, 0] = sources
    return probabilities
