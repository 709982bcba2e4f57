"""The exact posterior of graphs of few variables: probabilities of edges and samples."""

from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from jaxtyping import Float, Int, Num

from ..errors import require_whole
from .data import Data, load
from .draws import draw
from .layers import Sums, backward, exact_memory, forward, tabulate
from .posterior import AbstractPosterior
from .priors import Prior, log_weights
from .scores import AbstractScore, score_for
from .subsets import check_memory, indicators
from .top import most_probable


class ExactPosterior(AbstractPosterior):
    r"""The law $p(G) \propto \exp \sum_j w_j(\mathrm{Pa}_j)$ over all acyclic graphs.

    Attributes:
        names: of the variables.
        log_weights: $w_j(\mathrm{Pa})$, relative to the empty graph.
        log_z: the logarithm of their sum over all graphs.
        parent_sets: the probability that each child has each set of parents.
        accuracy: the largest error found in what is known: parent sets of a child have
            probability 1 in all, and forward and backward sums give the same $Z$.
    """

    names: tuple[str, ...]
    log_weights: Float[np.ndarray, "d sets"]
    log_z: float
    parent_sets: Float[np.ndarray, "d sets"]
    accuracy: float
    sums: Sums
    log_completions: Float[np.ndarray, " pairs"]

    @property
    def edge_marginals(self) -> pd.DataFrame:
        members = indicators(np.arange(self.parent_sets.shape[1]), len(self.names))
        return self.frame((self.parent_sets @ members).T)

    @property
    def expected_log_reward(self) -> float:
        r"""$E[\log R]$, relative to the empty graph."""
        possible = self.parent_sets > 0
        return float(np.sum(self.parent_sets[possible] * self.log_weights[possible]))

    def sample(self, count: int, *, seed: int = 0) -> Int[np.ndarray, "n d d"]:
        require_whole("count", count, 0)
        rng = np.random.default_rng(seed)
        return draw(self.log_weights, self.sums, self.log_completions, count, rng)

    def top(self, count: int) -> tuple[Int[np.ndarray, "k d d"], Float[np.ndarray, " k"]]:
        graphs, log_weights = most_probable(self.log_weights, count)
        return graphs, np.exp(log_weights - self.log_z)


def exact_posterior(
    table: Data | pd.DataFrame | Num[np.ndarray, "rows d"] | str | Path,
    *,
    score: AbstractScore | Literal["bge", "bdeu"] | None = None,
    prior: Prior = Prior(),
    temperature: float | Literal["paper"] = 1.0,
    progress: bool = False,
) -> ExactPosterior:
    """The posterior of the graphs of a table, exactly.

    Args:
        table: a CSV file, a data frame, a matrix, or one of them as `load` prepares it, which
            takes logarithms or levels. The others are taken as numbers and standardised.
        score: BGe, or BDeu if the data are discrete, unless given.
        prior: what is known of the graph.
        temperature: the power of the likelihood; 1 is the posterior, `"paper"` the paper's
            $N^{-1/2}$, without its edge penalty, which belongs to the prior.
        progress: whether to show a progress bar.
    """
    data = table if isinstance(table, Data) else load(table)
    count = len(data.names)
    check_memory(f"the exact posterior of {count} variables", exact_memory(count))
    weights = log_weights(data, score_for(data, score), prior, temperature)
    return solve(weights, data.names, progress=progress)


def solve(
    log_weights: Float[np.ndarray, "d sets"], names: tuple[str, ...], *, progress: bool = False
) -> ExactPosterior:
    """Sum over all acyclic graphs, given the weight of each set of parents of each child."""
    sums = tabulate(log_weights)
    ahead = forward(sums, progress=progress)
    if ahead.log_z == -np.inf:
        raise ValueError("no acyclic graph has a weight above zero: allow more parent sets")
    log_completions, parent_sets = backward(sums, log_weights, ahead, progress=progress)
    total = np.abs(parent_sets.sum(axis=1) - 1).max()
    accuracy = max(total, abs(np.expm1(log_completions[0] - ahead.log_z)))
    return ExactPosterior(
        names, log_weights, ahead.log_z, parent_sets, float(accuracy), sums, log_completions
    )
