"""The factor graphs of the study on structure, and a reference for those that are too wide."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
from jaxtyping import Array, Float, Int

from natgfn.envs import Assignments
from natgfn.graphical import FactorGraph, ising, potts, read_uai

ALARM = Path(__file__).parents[1] / "data" / "alarm.uai"
OBSERVED = {35: 1, 6: 0, 14: 2}
"""Values seen of three variables of the ALARM network."""


@dataclass(frozen=True)
class Target:
    """A factor graph, and how long to train on it.

    Attributes:
        make: the graph.
        updates: of every method.
        order: of the assignment.
        chain: whether a tempered chain is the reference, because the graph is too wide.
    """

    make: Callable[[], FactorGraph]
    updates: int
    order: str = "numbered"
    chain: bool = False

    def env(self) -> Assignments:
        return _env(self)


@cache
def _env(target: Target) -> Assignments:
    return Assignments(target.make(), target.order)


def grid(side: int, coupling: float = 0.6, field: float = 0.1, seed: int = 0) -> FactorGraph:
    """An Ising model on a square with open borders, of normal couplings and fields.

    The couplings of a site are those to its left and upper neighbours.
    """
    rng = np.random.default_rng(seed)
    left, upper = coupling * rng.normal(size=(2, side, side))
    fields = field * rng.normal(size=(side, side))
    graph = nx.grid_2d_graph(side, side)
    along = [left[max(a, b)] if a[0] == b[0] else upper[max(a, b)] for a, b in graph.edges]
    return ising(graph, np.array(along), fields.ravel())


def torus(side: int, coupling: float = 0.2) -> FactorGraph:
    """The peers' benchmark: $0.1\\, x^\\top A x$ counts each bond twice."""
    return ising(nx.grid_2d_graph(side, side, periodic=True), coupling)


def on(graph: nx.Graph, seed: int, coupling: float = 1.0, field: float = 0.5) -> FactorGraph:
    """An Ising model on any graph, of normal couplings and fields."""
    rng = np.random.default_rng(seed)
    edges, nodes = graph.number_of_edges(), graph.number_of_nodes()
    return ising(graph, coupling * rng.normal(size=edges), field * rng.normal(size=nodes))


def potts_grid(side: int, states: int, seed: int = 0) -> FactorGraph:
    rng = np.random.default_rng(seed)
    graph = nx.grid_2d_graph(side, side)
    fields = 0.3 * rng.normal(size=(side * side, states))
    return potts(graph, states, 0.8 * rng.normal(size=graph.number_of_edges()), fields)


def alarm() -> FactorGraph:
    return read_uai(ALARM).given(OBSERVED)


SMOKE = {
    "grid 3 x 3": Target(partial(grid, 3), 20),
    "grid 3 x 3, as if too wide": Target(partial(grid, 3), 20, chain=True),
}
PAPER = {
    "grid 8 x 8": Target(partial(grid, 8), 2_000),
    "grid 10 x 10": Target(partial(grid, 10), 2_000),
    "chain 200": Target(partial(on, nx.path_graph(200), 1), 500),
    "tree 200": Target(partial(on, nx.random_labeled_tree(200, seed=2), 2), 500, "auto"),
    "Potts 6 x 6, 3 states": Target(partial(potts_grid, 6, 3), 500),
    "ALARM, 3 of 37 observed": Target(alarm, 500, "auto"),
    "grid 12 x 12": Target(partial(grid, 12), 300),
    "torus 10 x 10": Target(partial(torus, 10), 500),
    "grid 20 x 20, weak": Target(partial(grid, 20, 0.3), 500, chain=True),
    "grid 20 x 20, strong": Target(partial(grid, 20, 1.0), 500, chain=True),
}


def tempered_chain(
    graph: FactorGraph, sweeps: int, seed: int = 0, chains: int = 8, rungs: int = 12
) -> Int[np.ndarray, "kept variables"]:
    """Spins of an Ising model on a bipartite graph, by Gibbs sampling with exchanges.

    Each chain has a ladder of inverse temperatures from 0.1 to 1. The first fifth of the sweeps is
    forgotten; of the rest, at inverse temperature 1, sixteen states a chain are kept.
    """
    bonds, fields = _couplings(graph)
    colour = nx.bipartite.color(graph.neighbours())
    black = np.array([colour[v] for v in range(graph.num_variables)], bool)
    keep = np.linspace(sweeps // 5, sweeps - 1, 16).astype(int)
    found = _sweep(bonds, fields, black, jnp.geomspace(0.1, 1.0, rungs), chains, sweeps, keep, seed)
    return (np.asarray(found).reshape(-1, graph.num_variables) > 0).astype(int)


def _couplings(graph: FactorGraph) -> tuple[np.ndarray, np.ndarray]:
    bonds = np.zeros((graph.num_variables,) * 2)
    fields = np.zeros(graph.num_variables)
    for scope, table in graph.factors():
        if len(scope) == 2:
            a, b = scope
            bonds[a, b] = bonds[b, a] = bonds[a, b] + table[1, 1]
        else:
            fields[scope[0]] += table[1]
    return bonds, fields


def _sweep(bonds, fields, black, ladder, chains, sweeps, keep, seed) -> Float[Array, "..."]:
    bonds, fields, black = map(jnp.asarray, (bonds, fields, black))

    def energy(spins):
        return jnp.sum(spins * (spins @ bonds / 2 + fields), axis=-1)

    def one(spins, inputs):
        key, step = inputs
        up_key, down_key, swap_key = jax.random.split(key, 3)
        for colour, part in ((black, up_key), (~black, down_key)):
            local = ladder[:, None] * (spins @ bonds + fields)
            drawn = jax.random.uniform(part, spins.shape) < jax.nn.sigmoid(2 * local)
            spins = jnp.where(colour, 2.0 * drawn - 1, spins)
        value = energy(spins)
        # Neighbours (0,1), (2,3), ... in one sweep, (1,2), (3,4), ... in the next.
        rung = jnp.arange(len(ladder))
        lower = (rung % 2 == step % 2) & (rung + 1 < len(ladder))
        gain = (ladder - jnp.roll(ladder, -1)) * (jnp.roll(value, -1, axis=1) - value)
        accept = lower & (jnp.log(jax.random.uniform(swap_key, value.shape)) < gain)
        came = jnp.roll(accept, 1, axis=1)
        swapped = jnp.where(accept[..., None], jnp.roll(spins, -1, axis=1), spins)
        swapped = jnp.where(came[..., None], jnp.roll(spins, 1, axis=1), swapped)
        return swapped, None

    @jax.jit
    def run(spins, keys, steps):
        return jax.lax.scan(one, spins, (keys, steps))[0]

    key = jax.random.key(seed)
    spins = jnp.sign(jax.random.normal(key, (chains, len(ladder), len(fields))))
    kept, done = [], 0
    for stop in keep + 1:
        keys = jax.random.split(jax.random.fold_in(key, done), int(stop - done))
        spins = run(spins, keys, jnp.arange(done, stop))
        kept.append(spins[:, -1])
        done = stop
    return jnp.stack(kept)
