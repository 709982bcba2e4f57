r"""How much probabilities of edges owe to the rows that happened to be observed.

A posterior says how sure one can be given these rows; as many other rows of the same kind would
give another one. Let the rows be $k$ groups, and $\ell_g(G) = \log p(D \mid G) - \log p(D_{-g} \mid
G)$ what the group $g$ adds to the log-likelihood of a graph. Without the group, the mean of $f(G)$
over the posterior changes, to first order, by $-c_g$ with $c_g = \mathrm{Cov}(f, \ell_g)$, and its
standard error over tables of as many rows is
$$\sqrt{\tfrac{k}{k - 1} \sum_g (c_g - \bar c)^2},$$
the infinitesimal jackknife of a posterior mean (Giordano and Broderick, 2023), here of an edge.
Covariances are over graphs that were drawn, so nothing is fitted again; each square is a product of
covariances over two halves of these, which has no bias from their number.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .candidates import Weights
from .data import Edge

GROUPS, DRAWS = 10, 2_000
"""Of rows, and the most graphs that are looked at."""


class Stability(NamedTuple):
    """What may change with the rows."""

    names: tuple[str, ...]
    probabilities: Float[np.ndarray, "d d"]
    """Of edges, row is source."""
    errors: Float[np.ndarray, "d d"]
    """Their standard errors over tables of as many rows."""

    @property
    def likely(self) -> list[Edge]:
        """Edges that are more probable than not."""
        return self._named(self.probabilities > 0.5)

    @property
    def unsure(self) -> list[Edge]:
        """Those of them that a standard error brings to one half."""
        return self._named((self.probabilities > 0.5) & (self.probabilities - self.errors <= 0.5))

    def __str__(self) -> str:
        many, some = len(self.likely), len(self.unsure)
        if not many:
            return "no edge is more probable than not"
        if not some:
            return f"with as many other rows, all {many} edges over one half would likely stay so"
        return f"with as many other rows, {some} of the {many} edges over one half may not stay so"

    def summary(self) -> dict[str, Any]:
        """As `summary.json` has it."""
        return {
            "note": str(self),
            "largest_error_of_an_edge": float(self.errors.max()),
            "edges_over_one_half": len(self.likely),
            "unsure": ["->".join(edge) for edge in self.unsure],
        }

    def _named(self, which: np.ndarray) -> list[Edge]:
        return [(self.names[i], self.names[j]) for i, j in np.argwhere(which)]


def stability_of(
    graphs: Int[np.ndarray, "n d d"],
    probabilities: Float[np.ndarray, "d d"],
    weights: Weights,
    *,
    groups: int = GROUPS,
) -> Stability:
    """How far probabilities of edges would move with other rows.

    Args:
        graphs: drawn from the posterior, each apart from the one before.
        probabilities: of edges, as they were found.
        weights: the table and its target.
        groups: of rows; every so manieth row belongs to the same.
    """
    graphs = graphs[:DRAWS]
    groups = min(groups, len(weights.data.values))
    added = _added(graphs, weights, groups)
    one, other = (_covariances(graphs[half::2], added[half::2]) for half in (0, 1))
    product = np.sum((one - one.mean(axis=0)) * (other - other.mean(axis=0)), axis=0)
    variance = groups / (groups - 1) * product
    return Stability(weights.data.names, probabilities, np.sqrt(np.maximum(variance, 0.0)))


def _added(
    graphs: Int[np.ndarray, "n d d"], weights: Weights, groups: int
) -> Float[np.ndarray, "n groups"]:
    """What each group of rows adds to the log-weight of each graph, but for a constant."""
    without = [_without(weights, group, groups) for group in range(groups)]
    total = np.zeros((len(graphs), groups))
    for child in range(weights.size):
        sets, which = np.unique(graphs[:, :, child] > 0, axis=0, return_inverse=True)
        left = np.stack([some.local(child, sets) for some in without], axis=1)
        total += (weights.local(child, sets)[:, None] - left)[which.ravel()]
    return total


def _without(weights: Weights, group: int, groups: int) -> Weights:
    """The same without a group of rows.

    Rows in which a variable was set from outside leave its score: so does a group in which all are
    said to be, unless that leaves none.
    """
    data = weights.data
    before = np.zeros(data.values.shape, bool) if data.intervened is None else data.intervened
    mask = before | (np.arange(len(before))[:, None] % groups == group)
    mask = np.where(mask.all(axis=0), before, mask)
    return replace(weights, data=replace(data, intervened=mask))


def _covariances(
    graphs: Int[np.ndarray, "n d d"], added: Float[np.ndarray, "n groups"]
) -> Float[np.ndarray, "groups d d"]:
    """Of each edge with what each group adds."""
    centred = (added - added.mean(axis=0)) / len(graphs)
    children = [centred.T @ graphs[:, :, child] for child in range(graphs.shape[1])]
    return np.stack(children, axis=-1)
