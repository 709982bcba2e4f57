r"""How far a posterior is from a graph, or from another posterior (`app:sachs_dag_details`).

All but the last are functions of the probabilities of edges $p_{ij}$, `[source, target]`: a graph
has at most one of $i \to j$ and $j \to i$, so even the law of a pair of variables follows from
them. Everything is over $i \ne j$.
"""

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from ..errors import MissingExtra

Matrix = Shaped[np.ndarray, "d d"]


def expected_shd(marginals: Matrix, truth: Matrix) -> float:
    r"""$\sum_{i \ne j} A_{ij} (1 - p_{ij}) + (1 - A_{ij}) p_{ij}$, as the paper prints it.

    A reversed edge counts twice.
    """
    return float(_off_diagonal(np.abs(truth - marginals)).sum())


def expected_shd_reversal_once(marginals: Matrix, truth: Matrix) -> float:
    """The structural Hamming distance in which a reversed edge counts once."""
    joined = _pairs(truth) > 0
    right = _pairs(truth * marginals)
    return float(np.where(joined, 1 - right, _pairs(marginals)).sum())


def expected_edges(marginals: Matrix) -> float:
    """$E|G|$."""
    return float(_off_diagonal(marginals).sum())


def directed_auprc(marginals: Matrix, truth: Matrix) -> float:
    """Average precision of edges ranked by their probabilities."""
    return average_precision(_off_diagonal(marginals), _off_diagonal(truth) > 0)


def directed_auroc(marginals: Matrix, truth: Matrix) -> float:
    """The probability that an edge ranks above a pair without one."""
    return area_under_roc(_off_diagonal(marginals), _off_diagonal(truth) > 0)


def skeleton_auprc(marginals: Matrix, truth: Matrix) -> float:
    r"""Average precision of pairs ranked by $p_{ij} + p_{ji}$."""
    return average_precision(_pairs(marginals), _pairs(truth) > 0)


def skeleton_auroc(marginals: Matrix, truth: Matrix) -> float:
    """The probability that a joined pair ranks above one that is not."""
    return area_under_roc(_pairs(marginals), _pairs(truth) > 0)


def largest_error(marginals: Matrix, exact: Matrix) -> float:
    r"""$\max_{i \ne j} |p_{ij} - q_{ij}|$."""
    return float(_off_diagonal(np.abs(marginals - exact)).max())


def mean_error(marginals: Matrix, exact: Matrix) -> float:
    r"""The mean of $|p_{ij} - q_{ij}|$ over $i \ne j$."""
    return float(_off_diagonal(np.abs(marginals - exact)).mean())


def adjustment_distance(graphs: Int[np.ndarray, "n d d"], truth: Matrix) -> float:
    """The mean number of pairs of a cause and an effect that graphs get wrong, of d (d - 1).

    A graph says of $i$ and $j$ that there is no effect, or for which variables to adjust: the
    ancestors of $i$. Whether that is right in the true graph is what gadjid computes (Henckel,
    Würtzen and Weichwald, 2024).
    """
    try:
        from gadjid import ancestor_aid  # pyright: ignore[reportAttributeAccessIssue]  (compiled)
    except ModuleNotFoundError as error:
        raise MissingExtra(error, "dag") from error

    known = (truth > 0).astype(np.int8)
    found, times = np.unique((graphs > 0).astype(np.int8), axis=0, return_counts=True)
    wrong = [ancestor_aid(known, one, edge_direction="from row to column")[1] for one in found]
    return float(times @ wrong / len(graphs))


def average_precision(values: Float[np.ndarray, " n"], positive: Bool[np.ndarray, " n"]) -> float:
    """The area under steps of precision against recall; equal values share a step."""
    hits, misses = _descending(values, positive)
    precision = np.cumsum(hits) / np.cumsum(hits + misses)
    return float(precision @ hits / hits.sum())


def area_under_roc(values: Float[np.ndarray, " n"], positive: Bool[np.ndarray, " n"]) -> float:
    """The probability that a positive ranks above a negative; equals count half."""
    hits, misses = _descending(values, positive)
    above = np.cumsum(hits) - hits / 2
    return float(above @ misses / hits.sum() / misses.sum())


def _descending(
    values: Float[np.ndarray, " n"], positive: Bool[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " steps"], Float[np.ndarray, " steps"]]:
    """How many positives and negatives have each value, the highest first."""
    _, step = np.unique(-values, return_inverse=True)
    return np.bincount(step, positive), np.bincount(step, ~positive)


def _off_diagonal(matrix: Matrix) -> Shaped[np.ndarray, " n"]:
    return matrix[~np.eye(len(matrix), dtype=bool)]


def _pairs(matrix: Matrix) -> Shaped[np.ndarray, " n"]:
    """The sum of both directions, for each pair."""
    return (matrix + matrix.T)[np.triu_indices(len(matrix), 1)]
