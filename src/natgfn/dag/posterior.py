"""What a posterior over graphs can be asked, however it was found."""

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import equinox as eqx
import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from . import graphs
from .data import Data
from .effects import Effects, effects_of
from .export import graph_of
from .scores import AbstractScore

if TYPE_CHECKING:
    import networkx

SAMPLES = 10_000
"""For probabilities that are not sums over parent sets: a standard error of at most 0.005."""


class AbstractPosterior(eqx.Module):
    """A law over acyclic graphs. In every table, row is source and column is target."""

    names: eqx.AbstractVar[tuple[str, ...]]

    @property
    @abstractmethod
    def edge_marginals(self) -> pd.DataFrame:
        """The probability of each edge."""

    @abstractmethod
    def sample(self, count: int, *, seed: int = 0) -> Int[np.ndarray, "n d d"]:
        """Adjacency matrices of independent graphs."""

    @abstractmethod
    def top(self, count: int) -> tuple[Int[np.ndarray, "k d d"], Float[np.ndarray, " k"]]:
        """The most probable graphs, and their probabilities."""

    def top_class(
        self, *, samples: int = SAMPLES, seed: int = 0
    ) -> tuple[Bool[np.ndarray, "d d"], float]:
        """The most frequent Markov equivalence class among draws, and its share of these.

        Graphs of a class have the same conditional independencies, which is all that observations
        can tell of them. An edge that all of them have in one direction has that; any other has
        both.
        """
        return graphs.most_frequent_class(self.sample(samples, seed=seed))

    def ancestors(self, *, samples: int = SAMPLES, seed: int = 0) -> pd.DataFrame:
        """The probability that a directed path leads from one variable to another."""
        return self.frame(graphs.ancestors(self.sample(samples, seed=seed)).mean(axis=0))

    def markov_blankets(self, *, samples: int = SAMPLES, seed: int = 0) -> pd.DataFrame:
        """The probability that one variable belongs to the Markov blanket of another."""
        return self.frame(graphs.markov_blankets(self.sample(samples, seed=seed)).mean(axis=0))

    def markov_blanket(self, name: str, *, samples: int = SAMPLES, seed: int = 0) -> pd.Series:
        """The probability that each other variable belongs to the Markov blanket of `name`."""
        if name not in self.names:
            raise ValueError(f"no variable {name!r}: expected one of {', '.join(self.names)}")
        blankets = self.markov_blankets(samples=samples, seed=seed).to_dict()
        return pd.Series(blankets[name], name=name).drop(name)

    def effects(
        self,
        data: Data,
        score: AbstractScore | Literal["bge"] | None = None,
        *,
        samples: int = SAMPLES,
        seed: int = 0,
    ) -> Effects:
        """Average causal effects, and the probability that there is one, over draws of graphs.

        Args:
            data: the table that the posterior is of, as `load` prepares it; continuous.
            score: the `BGe` that it was found with, if it had other parameters than the default.
            samples: graphs that are drawn, with one draw of coefficients each.
            seed: of all draws.
        """
        if data.names != self.names:
            raise ValueError(
                f"expected a table with the columns {', '.join(self.names)}, got "
                f"{', '.join(data.names)}"
            )
        return effects_of(self.sample(samples, seed=seed), data, score, seed=seed)

    @property
    def expected_edges(self) -> float:
        """$E|G|$."""
        return float(self.edge_marginals.to_numpy().sum())

    def graph(self, threshold: float = 0.5) -> "networkx.DiGraph":
        """The edges at least this probable, for networkx, each with its `probability`."""
        return graph_of(self.edge_marginals, threshold)

    def plot(self, path: str | Path) -> Path:
        """Draw the probabilities of edges, as a table and as a graph."""
        from .figure import draw_posterior

        return draw_posterior(self.edge_marginals, Path(path))

    def frame(self, values: Float[np.ndarray, "d d"]) -> pd.DataFrame:
        """A matrix with names."""
        return pd.DataFrame(values, index=list(self.names), columns=list(self.names))
