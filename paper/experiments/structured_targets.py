"""The factor graphs of the study on structure, and a reference for those that are too wide."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

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

    def reference(self, sweeps: int) -> "Reference":
        return _reference(self, sweeps)


@cache
def _env(target: Target) -> Assignments:
    return Assignments(target.make(), target.order)


@cache
def _reference(target: Target, sweeps: int) -> "Reference":
    return tempered_chain(target.env().graph, sweeps)


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


class Reference(NamedTuple):
    """What tempered chains say of an Ising model."""

    states: Int[np.ndarray, "kept variables"]
    """Assignments that were kept, of all chains."""
    ups: Float[np.ndarray, "chains variables"]
    """The probability of each spin to be up, by each chain."""


def tempered_chain(
    graph: FactorGraph, sweeps: int, seed: int = 0, chains: int = 8, rungs: int = 12
) -> Reference:
    """Gibbs sampling with exchanges, of an Ising model on a bipartite graph.

    Each chain has a ladder of inverse temperatures from 0.1 to 1. The first fifth of the sweeps is
    forgotten. Of the rest, at inverse temperature 1, 64 states a chain are kept; probabilities are
    means over all sweeps, of each spin given its neighbours (Rao-Blackwell).
    """
    bonds, fields = _couplings(graph)
    colour = nx.bipartite.color(graph.neighbours())
    black = np.array([colour[v] for v in range(graph.num_variables)], bool)
    ladder = jnp.geomspace(0.1, 1.0, rungs)
    spins, ups = map(np.asarray, _sweep(bonds, fields, black, ladder, chains, sweeps // 80, seed))
    states = (spins[16:].reshape(-1, graph.num_variables) > 0).astype(int)
    return Reference(states, np.mean(ups[16:], axis=0, dtype=float))


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


def _sweep(
    bonds, fields, black, ladder, chains, gap, seed
) -> tuple[Float[Array, "80 chains variables"], Float[Array, "80 chains variables"]]:
    """After each of 80 times `gap` sweeps the coldest spins, and how probably they were up."""
    bonds, fields, black = map(jnp.asarray, (bonds, fields, black))

    def energy(spins):
        return jnp.sum(spins * (spins @ bonds / 2 + fields), axis=-1)

    def one(carry, inputs):
        (spins, ups), (key, step) = carry, inputs
        up_key, down_key, swap_key = jax.random.split(key, 3)
        for colour, part in ((black, up_key), (~black, down_key)):
            local = ladder[:, None] * (spins @ bonds + fields)
            up = jax.nn.sigmoid(2 * local)
            drawn = jax.random.uniform(part, spins.shape) < up
            spins = jnp.where(colour, 2.0 * drawn - 1, spins)
            ups = jnp.where(colour, ups + up[:, -1], ups)
        value = energy(spins)
        # Neighbours (0,1), (2,3), ... in one sweep, (1,2), (3,4), ... in the next.
        rung = jnp.arange(len(ladder))
        lower = (rung % 2 == step % 2) & (rung + 1 < len(ladder))
        gain = (ladder - jnp.roll(ladder, -1)) * (jnp.roll(value, -1, axis=1) - value)
        accept = lower & (jnp.log(jax.random.uniform(swap_key, value.shape)) < gain)
        came = jnp.roll(accept, 1, axis=1)
        swapped = jnp.where(accept[..., None], jnp.roll(spins, -1, axis=1), spins)
        swapped = jnp.where(came[..., None], jnp.roll(spins, 1, axis=1), swapped)
        return (swapped, ups), None

    def together(spins, inputs):
        start = spins, jnp.zeros_like(spins[:, -1])
        (spins, ups), _ = jax.lax.scan(one, start, inputs)
        return spins, (spins[:, -1], ups / gap)

    @jax.jit
    def run(key):
        spins = jnp.sign(jax.random.normal(key, (chains, len(ladder), len(fields))))
        keys = jax.random.split(jax.random.fold_in(key, 1), (80, gap))
        return jax.lax.scan(together, spins, (keys, jnp.arange(80 * gap).reshape(80, gap)))[1]

    return run(jax.random.key(seed))
