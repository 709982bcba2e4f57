"""Many graphs at once: adjacency matrices `[graphs, d, d]`, row is source, column is target."""

import numpy as np
from jaxtyping import Bool, Int, Shaped


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


def patterns(graphs: Shaped[np.ndarray, "*n d d"]) -> Bool[np.ndarray, "*n d d"]:
    """What Markov-equivalent graphs have in common, and others do not.

    Edges that meet in a child whose parents are not joined keep their direction; all others go both
    ways. So the pattern says which variables are joined, and which edges meet like that.
    """
    edges = graphs.astype(np.float32)
    joined = edges + np.swapaxes(edges, -1, -2) > 0
    apart = ~joined & ~np.eye(edges.shape[-1], dtype=bool)
    meets = (edges > 0) & (apart.astype(np.float32) @ edges > 0)
    return joined & ~np.swapaxes(meets, -1, -2)


def completed(pattern: Bool[np.ndarray, "d d"]) -> Bool[np.ndarray, "d d"]:
    """All that a Markov equivalence class says of directions (CPDAG), from its pattern.

    An edge goes one way if it does so in every graph of the class, and both ways otherwise. Meek's
    first three rules (1995), until they direct nothing more.
    """
    found = pattern.copy()
    while True:
        open_, arrows = found & found.T, found & ~found.T
        apart = ~(found | found.T | np.eye(len(found), dtype=bool))
        # Of k -> i - j with k and j apart, i <- j would make a new pair of edges that meet.
        forced = arrows.T @ apart
        # Of i -> k -> j, i <- j would make a cycle.
        forced |= arrows @ arrows
        # Of i - k -> j and i - l -> j with k and l apart, i <- j would make one or the other.
        between = open_[:, :, None] & arrows
        forced |= np.any(between & (apart @ between), axis=1)
        if not np.any(open_ & forced):
            return found
        found &= ~(open_ & forced).T


def most_frequent_class(
    graphs: Int[np.ndarray, "n d d"],
) -> tuple[Bool[np.ndarray, "d d"], float]:
    """Of the Markov equivalence classes of graphs, as `completed` has it, and its share."""
    found = patterns(graphs)
    bits = np.packbits(found.reshape(len(found), -1), axis=1)
    _, first, times = np.unique(bits, axis=0, return_index=True, return_counts=True)
    return completed(found[first[np.argmax(times)]]), float(times.max() / len(graphs))
