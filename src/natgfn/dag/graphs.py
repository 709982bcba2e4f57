"""Many graphs at once: adjacency matrices `[graphs, d, d]`, row is source, column is target."""

import numpy as np
from jaxtyping import Bool, Shaped


def ancestors(graphs: Shaped[np.ndarray, "*n d d"]) -> Bool[np.ndarray, "*n d d"]:
    """Whether a directed path leads from row to column."""
    paths = graphs.astype(np.float32)
    for _ in range(max(1, int(np.ceil(np.log2(graphs.shape[-1]))))):
        paths = np.minimum(paths + paths @ paths, 1)
    return paths > 0


def markov_blankets(graphs: Shaped[np.ndarray, "*n d d"]) -> Bool[np.ndarray, "*n d d"]:
    """Whether row is a parent, a child or another parent of a child of column."""
    edges = graphs.astype(np.float32)
    transposed = np.swapaxes(edges, -1, -2)
    blanket = edges + transposed + edges @ transposed > 0
    return blanket & ~np.eye(edges.shape[-1], dtype=bool)


def is_acyclic(graphs: Shaped[np.ndarray, "n d d"]) -> Bool[np.ndarray, " n"]:
    """Whether no path leads back to where it began."""
    return ~np.einsum("nii->ni", ancestors(graphs)).any(axis=1)
