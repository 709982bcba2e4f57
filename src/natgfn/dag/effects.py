r"""Average causal effects: what a change of one variable does to another, with its uncertainty.

Given a graph $G$, each child is linear in its parents, $x_j = a_j + \sum_i x_i B_{ij} + e_j$ with
$e_j \sim N(0, v_j)$, and a change of $x_i$ by one unit changes $x_j$ by the sum over all directed
paths from $i$ to $j$ of the product of their coefficients, $((I - B)^{-1})_{ij}$ for $i \ne j$.

**The law of the coefficients** is the one that the score `BGe` integrates over, so that both are
parts of one posterior. Its prior, and with the data its posterior, is a Wishart law of the
precision matrix of all variables, with parameters $R$ and $\alpha_w + N$ after $N$ rows. For the
child $j$ and $p$ parents $P$ it implies
$$v_j \sim \text{inverse gamma}\big(\tfrac{\nu}2, \tfrac{R_{jj \mid P}}2\big), \qquad
  B_{Pj} \mid v_j \sim N\big(R_{PP}^{-1} R_{Pj},\; v_j R_{PP}^{-1}\big),$$
$$\nu = \alpha_w + N - d + p + 1, \qquad
  R_{jj \mid P} = R_{jj} - R_{jP} R_{PP}^{-1} R_{Pj},$$
independently for each child (Geiger and Heckerman, 2002). So a coefficient has a Student law with
$\nu$ degrees of freedom. With $N = 0$ and $R = T$ that is the prior, and the ratio of the two
normalising constants is $e^{s_j(P)}$. Coefficients have their posterior given the whole table, also
where the graphs are from a power of the likelihood other than one.
"""

from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ..errors import NatgfnError
from . import graphs as of_graphs
from .data import Data
from .scores import AbstractScore, BGe, score_for

TAIL = 0.05
"""The probability on either side of an interval."""

_TOGETHER = 2**20  # coefficients of graphs whose effects are computed together


class Effects(NamedTuple):
    """Average causal effects of one variable (row) on another (column).

    The unit is that of the columns of the table, of their logarithms if these were taken: by how
    many units of the effect the mean changes if the cause is raised by one unit. Where no path
    leads from one to the other the effect is zero, and such graphs count.
    """

    probability: pd.DataFrame
    """That there is a directed path."""
    mean: pd.DataFrame
    low: pd.DataFrame
    """The effect is below with probability 0.05."""
    high: pd.DataFrame
    """The effect is above with probability 0.05."""

    def tidy(self) -> pd.DataFrame:
        """A line for each cause and effect, the most probable first."""
        names = list(self.mean.columns)
        source, target = np.nonzero(~np.eye(len(names), dtype=bool))
        found = pd.DataFrame({"cause": source, "effect": target})
        for name, frame in self._asdict().items():
            found[name] = frame.to_numpy()[source, target]
        found = found.sort_values("probability", ascending=False, kind="stable", ignore_index=True)
        labels = np.array(names, object)
        return found.assign(cause=labels[found["cause"]], effect=labels[found["effect"]])


def effects_of(
    graphs: Int[np.ndarray, "n d d"],
    data: Data,
    score: AbstractScore | Literal["bge"] | None = None,
    *,
    seed: int = 0,
) -> Effects:
    """The effects in graphs drawn from the posterior of a table, one draw of coefficients each.

    Args:
        graphs: adjacency matrices.
        data: the table that the graphs were found from, of continuous data.
        score: the `BGe` that they were found with.
        seed: of the coefficients.
    """
    if data.discrete:
        raise ValueError("effects are for continuous data, got discrete data")
    scored = score_for(data, score)
    if not isinstance(scored, BGe):
        raise ValueError(f"effects need the score BGe, got {type(scored).__name__}")
    size = len(data.names)
    if graphs.shape[1] != size:
        raise ValueError(f"expected graphs of {size} variables, got {graphs.shape[1]}")
    unit = _units(data)
    found = coefficients(graphs, data, scored, np.random.default_rng(seed))
    paths, together = of_graphs.ancestors(graphs), max(1, _TOGETHER // size**2)
    for start in range(0, len(found), together):
        some = slice(start, start + together)
        # Where there is no path the inverse is zero up to rounding.
        found[some] = np.where(paths[some], np.linalg.inv(np.eye(size) - found[some]), 0.0)
    low, high = np.empty((2, size, size))
    for cause in range(size):
        low[cause], high[cause] = np.quantile(found[:, cause], (TAIL, 1 - TAIL), axis=0)
    labels = list(data.names)
    frames = (paths.mean(axis=0), unit * found.mean(axis=0), unit * low, unit * high)
    return Effects(*(pd.DataFrame(x, labels, labels) for x in frames))


def coefficients(
    graphs: Int[np.ndarray, "n d d"], data: Data, score: BGe, rng: np.random.Generator
) -> Float[np.ndarray, "n d d"]:
    """$B$, a draw for each graph, row is source; in the unit of `data.values`."""
    found = np.zeros(graphs.shape)
    for child in range(graphs.shape[1]):
        law, counts = score.law(data, child), np.count_nonzero(graphs[:, :, child], axis=1)
        for count in np.unique(counts[counts > 0]):
            (rows,) = np.nonzero(counts == count)
            parents = np.nonzero(graphs[rows, :, child])[1].reshape(len(rows), count)
            freedom = float(law.after[count + 1])
            drawn = _draw(law.posterior, freedom, child, parents, rng)
            found[rows[:, None], parents, child] = drawn
    return found


def _draw(
    matrix: Float[np.ndarray, "d d"],
    freedom: float,
    child: int,
    parents: Int[np.ndarray, "n p"],
    rng: np.random.Generator,
) -> Float[np.ndarray, "n p"]:
    r"""Coefficients of a child's parents, of each row of these.

    Of $R$ in the order $P$, $j$ the factor is $\begin{pmatrix} L & 0 \\ l^T & r \end{pmatrix}$, so
    that $R_{PP} = L L^T$, $R_{PP}^{-1} R_{Pj} = L^{-T} l$ and $R_{jj \mid P} = r^2$.
    """
    order = np.pad(parents, ((0, 0), (0, 1)), constant_values=child)
    try:
        factor = np.linalg.cholesky(matrix[order[:, :, None], order[:, None, :]])
    except np.linalg.LinAlgError as error:
        raise NatgfnError(
            "columns are nearly sums of each other, and coefficients are lost in rounding: "
            "standardise, or remove some"
        ) from error
    root, half, rest = factor[:, :-1, :-1], factor[:, -1, :-1], factor[:, -1, -1]
    deviation = rest / np.sqrt(rng.chisquare(freedom, len(parents)))
    drawn = half + deviation[:, None] * rng.standard_normal(half.shape)
    return np.linalg.solve(np.swapaxes(root, 1, 2), drawn[:, :, None])[:, :, 0]


def _units(data: Data) -> Float[np.ndarray, "d d"]:
    """What an effect of one, of row on column, is in the units of their columns."""
    if data.scale is None:
        return np.ones((len(data.names), len(data.names)))
    with np.errstate(over="ignore", divide="ignore"):
        unit = data.scale / data.scale[:, None]
    for cause, effect in np.argwhere(~((unit > 1e-200) & (unit < 1e200))):
        raise NatgfnError(
            f"the effect of {data.names[cause]!r} on {data.names[effect]!r} is too large or too "
            "small in the units of these columns: change their units"
        )
    return unit
