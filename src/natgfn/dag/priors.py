r"""What is known before the data, and the law that results: local log-weights.

Every prior here decomposes over children, so that
$$\log R(G) = \sum_j w_j(\mathrm{Pa}_j), \qquad
w_j(\mathrm{Pa}) = \beta\, (s_j(\mathrm{Pa}) - s_j(\emptyset)) + \log \pi_j(\mathrm{Pa}),$$
relative to the score of the empty graph. With the likelihood to the power $\beta = 1$ this is the
posterior; the paper's target (`eq:dag_tempered_target`) has $\beta = N^{-1/2}$ and a penalty of
0.5 an edge.
"""

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Literal

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float

from ..errors import NatgfnError, require_whole
from .data import Data, Edge
from .names import unknown
from .scores import AbstractScore, local_scores
from .subsets import check_memory, subset_totals, table_bytes

PAPER_PENALTY = 0.5
"""What the paper takes off the log-weight of a graph for each edge, in nats."""


LARGEST = 1e6
"""The largest size of what is given for an edge, in nats; sums of larger ones round scores away."""


class Prior(eqx.Module):
    r"""A law over graphs, up to a constant; the default is uniform.

    Attributes:
        edge_penalty: taken from the logarithm for each edge.
        edge_probability: of each edge in an Erdos-Renyi graph, before it must be acyclic.
        max_parents: the largest number of parents of a child; any number if None.
        require: edges that every graph has.
        forbid: edges that no graph has.
        log_odds: of an edge, $\log p / (1 - p)$, for those about which something is known.
    """

    edge_penalty: float = 0.0
    edge_probability: float = 0.5
    max_parents: int | None = None
    require: Sequence[Edge] = ()
    forbid: Sequence[Edge] = ()
    log_odds: Mapping[Edge, float] = eqx.field(default_factory=dict)

    def __check_init__(self):
        if not abs(self.edge_penalty) <= LARGEST:
            raise ValueError(
                f"edge_penalty must be finite, at most {LARGEST:g} in size, got {self.edge_penalty}"
            )
        if not 0 < self.edge_probability < 1:
            raise ValueError(f"edge_probability must be in (0, 1), got {self.edge_probability}")
        if self.max_parents is not None:
            require_whole("max_parents", self.max_parents, 0)
        if not all(abs(value) <= LARGEST for value in self.log_odds.values()):
            raise ValueError(
                f"log_odds must be finite, at most {LARGEST:g} in size: use require and forbid for "
                "certainty"
            )

    def edges(
        self, names: tuple[str, ...]
    ) -> tuple[Float[np.ndarray, "d d"], Bool[np.ndarray, "d d"]]:
        r"""The log-odds of each edge, $-\infty$ where it is forbidden, and which are required."""
        required, forbidden = _mask(names, self.require), _mask(names, self.forbid)
        self._check_consistent(names, required, forbidden)
        odds = np.full(required.shape, np.log(self.edge_probability / (1 - self.edge_probability)))
        odds -= self.edge_penalty
        for edge, value in self.log_odds.items():
            odds[_mask(names, [edge])] += value
        odds[forbidden] = -np.inf
        return odds, required

    def local(self, names: tuple[str, ...]) -> Float[np.ndarray, "d sets"]:
        r"""$\log \pi_j(\mathrm{Pa})$, and $-\infty$ where a set is not allowed."""
        odds, required = self.edges(names)
        sets = np.arange(2 ** len(names))
        table = np.stack([subset_totals(column) for column in odds.T])
        for child, row in enumerate(table):
            needed = sum(1 << int(parent) for parent in np.flatnonzero(required[:, child]))
            row[sets & needed != needed] = -np.inf
        if self.max_parents is not None:
            table[:, np.bitwise_count(sets) > self.max_parents] = -np.inf
        return table

    def _check_consistent(
        self, names: tuple[str, ...], required: Bool[np.ndarray, "d d"], forbidden: np.ndarray
    ) -> None:
        parents = {name: [s for s, t in self.require if t == name] for name in names}
        try:
            TopologicalSorter(parents).prepare()
        except CycleError as error:
            cycle = " -> ".join(error.args[1])
            raise NatgfnError(f"required edges must not form a cycle, got {cycle}") from error
        for source, target in np.argwhere(required & forbidden):
            raise NatgfnError(f"{names[source]}->{names[target]} is both required and forbidden")
        if self.max_parents is not None:
            for child in np.flatnonzero(required.sum(axis=0) > self.max_parents):
                raise NatgfnError(
                    f"{names[child]} has {required[:, child].sum()} required parents, more than "
                    f"max_parents = {self.max_parents}"
                )


def log_weights(
    data: Data,
    score: AbstractScore,
    prior: Prior,
    temperature: float | Literal["paper"] = 1.0,
) -> Float[np.ndarray, "d sets"]:
    r"""$w_j(\mathrm{Pa})$ for each child and set.

    The temperature is $\beta$, the power of the likelihood; `"paper"` is $N^{-1/2}$.
    """
    power = power_of(temperature, data)
    count = len(data.names)
    check_memory(f"a table of local scores of {count} variables", table_bytes(count))
    allowed = prior.local(data.names)  # first: it is quick to find an error
    scores = local_scores(score, data)
    return power * (scores - scores[:, :1]) + allowed


def power_of(temperature: float | Literal["paper"], data: Data) -> float:
    r"""$\beta$ as a number."""
    power = temperature
    if isinstance(power, str):
        power = len(data.values) ** -0.5 if power == "paper" else np.nan
    if not 0 < power <= LARGEST:
        raise ValueError(
            f"temperature must be positive and finite, at most {LARGEST:g}, or 'paper', got "
            f"{temperature}"
        )
    return float(power)


def _mask(names: tuple[str, ...], edges: Iterable[Edge]) -> Bool[np.ndarray, "d d"]:
    mask = np.zeros((len(names), len(names)), bool)
    for edge in edges:
        if isinstance(edge, str) or len(edge) != 2:
            raise ValueError(f"an edge is a pair of names, ('A', 'B') for A -> B, got {edge!r}")
        for name in edge:
            if name not in names:
                raise NatgfnError(f"edge {'->'.join(edge)}: {unknown(name, names)}")
        mask[names.index(edge[0]), names.index(edge[1])] = True
    return mask
