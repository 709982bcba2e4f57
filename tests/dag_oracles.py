"""Brute force over all acyclic graphs, by definition."""

import functools
from itertools import combinations

import numpy as np
from scipy.special import logsumexp

COUNTS = (
    1,
    3,
    25,
    543,
    29281,
    3781503,
    1138779265,
    783702329343,
    1213442454842881,
    4175098976430598143,
    31603459396418917607425,
)
"""Acyclic graphs on 1, 2, ... labelled vertices."""


@functools.cache
def all_dags(size: int) -> np.ndarray:
    """`[graphs, d, d]`: all matrices whose walks end."""
    pairs = [(i, j) for i in range(size) for j in range(size) if i != j]
    bits = np.arange(2 ** len(pairs))[:, None] >> np.arange(len(pairs)) & 1
    graphs = np.zeros((len(bits), size, size), np.float32)
    graphs[:, *np.array(pairs, int).reshape(-1, 2).T] = bits
    walks = graphs
    for _ in range(size - 1):
        walks = walks @ graphs
    return graphs[~walks.any(axis=(1, 2))].astype(np.int64)


def parent_bits(graphs: np.ndarray) -> np.ndarray:
    """`[graphs, d]`: the parents of each vertex, as bits."""
    return np.einsum("nij,i->nj", graphs, 2 ** np.arange(graphs.shape[1]))


def log_rewards(log_weights: np.ndarray, graphs: np.ndarray) -> np.ndarray:
    return log_weights[np.arange(len(log_weights)), parent_bits(graphs)].sum(axis=1)


def law(log_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """All graphs, their probabilities, and log Z."""
    graphs = all_dags(len(log_weights))
    logs = log_rewards(log_weights, graphs)
    log_z = float(logsumexp(logs))
    return graphs, np.exp(logs - log_z), log_z


def sum_of_integers(weights: list[list[int]]) -> int:
    """Z of integer weights, exactly: by inclusion and exclusion of sets of sinks."""
    size = len(weights)
    within = [list(row) for row in weights]
    for row in within:
        for i in range(size):
            for members in range(2**size):
                if members >> i & 1:
                    row[members] += row[members ^ 1 << i]
    totals = [1] + [0] * (2**size - 1)
    for members in range(1, 2**size):
        sinks = members
        while sinks:
            rest = members ^ sinks
            term = totals[rest] * (1 if sinks.bit_count() % 2 else -1)
            for j in range(size):
                if sinks >> j & 1:
                    term *= within[j][rest]
            totals[members] += term
            sinks = (sinks - 1) & members
    return totals[-1]


def equivalence_class(graph: np.ndarray) -> tuple:
    """The skeleton and the colliders of unjoined parents: what Markov equivalence keeps."""
    joined = graph + graph.T
    colliders = {
        (i, k, j)
        for k in range(len(graph))
        for i, j in combinations(np.flatnonzero(graph[:, k]).tolist(), 2)
        if not joined[i, j]
    }
    return joined.tobytes(), frozenset(colliders)


def random_weights(size: int, spread: float, seed: int) -> np.ndarray:
    """Local log-weights; no vertex is its own parent."""
    table = np.random.default_rng(seed).normal(scale=spread, size=(size, 2**size))
    for child in range(size):
        table[child, np.arange(2**size) >> child & 1 == 1] = -np.inf
    return table


def guide_logits(
    table: np.ndarray, edges: np.ndarray, reached: np.ndarray, required: int = 0
) -> tuple[np.ndarray, float]:
    """The logits of edges and of stopping in one state, as the docstring of `dag.guide` says."""
    size, sets = len(table), np.arange(table.shape[1])
    free = ~edges & ~reached & ~np.eye(size, dtype=bool)
    p, stays, q = np.zeros((size, size)), np.ones((size, size)), np.ones(size)
    for j in range(size):
        now, later = (int(x[:, j] @ 2 ** np.arange(size)) for x in (edges, free))

        def total(now, later, j=j):
            these = (sets & now == now) & (sets & ~(now | later) == 0)
            return np.exp(table[j, these]).sum()

        q[j] = np.exp(table[j, now]) / total(now, later)
        for i in np.flatnonzero(free[:, j]):
            bit = 1 << int(i)
            p[i, j] = total(now | bit, later & ~bit) / total(now, later)
            stays[i, j] = total(now, later & ~bit) / total(now, later)
    one, neither = p * stays.T, stays * stays.T
    z = one + one.T + neither
    q = np.minimum(q / np.sqrt(z).prod(axis=1), 1 - 1e-6)
    share = np.where(free, p / np.maximum(p + p.T, 1e-300), 0)
    chance = share * (1 - neither / z)
    more = np.maximum(chance.sum(axis=0) / (1 - q) - 1, 0)
    x = (np.arange(20_000) + 0.5) / 20_000
    g = q[:, None] + (1 - q[:, None]) * x * np.exp(-more[:, None] * (1 - x))
    weight = (1 - x) ** (edges.sum() - required) * g.prod(axis=0)
    pair = (chance + chance.T)[..., None]
    with np.errstate(divide="ignore"):
        order = np.log(np.mean(weight / (1 - pair * (1 - x)), axis=-1))
        return np.log(chance) + order, float(np.log(q).sum())
