"""Factor graphs solved by listing every assignment."""

import warnings
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from natgfn.graphical import FactorGraph

with warnings.catch_warnings():  # its wrapper's types have no module: an error here would crash it
    warnings.simplefilter("ignore")
    import pyagrum as gum  # noqa: F401


class Listed(NamedTuple):
    assignments: np.ndarray
    log_values: np.ndarray
    log_z: float
    law: np.ndarray


def listed(graph: FactorGraph) -> Listed:
    values = np.array(list(product(*map(range, graph.cards))), int)
    log_values = np.array([_log_value(graph, x) for x in values])
    log_z = float(logsumexp(log_values))
    return Listed(values, log_values, log_z, np.exp(log_values - log_z))


def _log_value(graph: FactorGraph, values: np.ndarray) -> float:
    return float(sum(table[tuple(values[list(scope)])] for scope, table in graph.factors()))


def random_graph(seed: int, zeros: float = 0.15, most: int = 8) -> FactorGraph:
    """Mixed cardinalities, factors of zero to four variables, and one assignment at least."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, most + 1))
    cards = rng.integers(1, 4, count)
    sure = np.array([rng.integers(card) for card in cards])
    factors = []
    for _ in range(int(rng.integers(1, count + 3))):
        size = int(rng.integers(0, min(4, count) + 1))
        scope = tuple(rng.choice(count, size, replace=False).tolist())
        table = rng.normal(size=tuple(cards[list(scope)]))
        forbidden = np.asarray(rng.random(table.shape) < zeros)
        forbidden[tuple(sure[list(scope)])] = False
        factors.append((scope, np.where(forbidden, -np.inf, table)))
    return FactorGraph.of(cards.tolist(), factors)


def ising_grid(
    height: int, width: int, seed: int = 0, coupling: float = 0.6, field: float = 0.1
) -> FactorGraph:
    """Random couplings and fields, open borders, numbered row by row."""
    rng = np.random.default_rng(seed)
    along, across = coupling * rng.normal(size=(2, height, width))
    fields = field * rng.normal(size=(height, width))
    spin = np.array([-1.0, 1.0])
    factors = []
    for i in range(height):
        for j in range(width):
            here = i * width + j
            factors.append(((here,), fields[i, j] * spin))
            if i > 0:
                factors.append(((here - width, here), across[i, j] * np.outer(spin, spin)))
            if j > 0:
                factors.append(((here - 1, here), along[i, j] * np.outer(spin, spin)))
    return FactorGraph.of([2] * (height * width), factors)
