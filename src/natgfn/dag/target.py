"""The construction of graphs for a table: local weights from a table of their own, or computed."""

from typing import Literal

import numpy as np

from ..envs import AbstractDags, Dags, GaussianDags
from ..errors import NatgfnError
from .data import Data
from .priors import Prior, log_weights, power_of
from .scores import AbstractScore, BGe

TABULATED = 16
"""The most variables for which `fit` tabulates the weights of all sets of parents."""


def environment(
    data: Data,
    score: AbstractScore,
    prior: Prior,
    temperature: float | Literal["paper"],
    tabulated: int = TABULATED,
) -> AbstractDags:
    """The weights of all sets of parents in a table, or those of a graph when they are needed."""
    count = len(data.names)
    if count <= tabulated:
        return Dags(log_weights(data, score, prior, temperature))
    if not isinstance(score, BGe):
        raise NatgfnError(
            f"{type(score).__name__} needs a table of all sets of parents, and there are too many "
            f"of {count} variables: use at most {tabulated}, or continuous data and BGe"
        )
    return gaussian_dags(data, score, prior, temperature)


def gaussian_dags(
    data: Data, score: BGe, prior: Prior, temperature: float | Literal["paper"]
) -> GaussianDags:
    """The weights of `log_weights`, computed when they are needed."""
    count, power = len(data.names), power_of(temperature, data)
    odds, required = prior.edges(data.names)
    law = score.law(data)
    matrices, degrees = [law.posterior], [law.after]
    if np.any(law.prior[~np.eye(count, dtype=bool)]):
        matrices, degrees = [*matrices, law.prior], [*degrees, law.before]
    half = (np.log(law.prior.diagonal()) - np.log(law.posterior.diagonal())) / 2
    by_size = np.diff(law.constant)
    return GaussianDags(
        correlations=np.stack([_correlation(matrix) for matrix in matrices]),
        degrees=power * np.stack(degrees)[:, 1:],
        by_size=power * (by_size - by_size[0]),
        by_edge=power * (half[:, None] + half) + odds,
        power=power,
        required=tuple((int(i), int(j)) for i, j in np.argwhere(required)),
        max_parents=count - 1 if prior.max_parents is None else min(prior.max_parents, count - 1),
    )


def _correlation(matrix: np.ndarray) -> np.ndarray:
    scale = np.sqrt(matrix.diagonal())
    return matrix / scale / scale[:, None]
