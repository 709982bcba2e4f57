r"""Markov chains over root partitions: a reference that owes nothing to a trained sampler.

A state is a root partition of covered graphs (`candidates`), and its weight $R$ a product of local
sums (`envs.Partitions`). A step proposes another one (`moves`), and is accepted by the rule of
Metropolis and Hastings. Chains at the powers $R^\beta$ of a ladder $1 = \beta_0 > \beta_1 > \dots$
run side by side and exchange states with their neighbours, so that what is found where the law is
flat arrives at $\beta = 1$. Several such ladders are independent of each other: they have to agree.

**Probabilities of edges.** Given the partition, $i$ is a parent of $j$ with probability
$1 - B_j(U \setminus i, L \setminus i) / B_j(U, L)$; the average over the states at $\beta = 1$ has
less noise than one over graphs drawn from them.
"""

import time
from pathlib import Path
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float, Float64, Int, Int8, Num, PRNGKeyArray, UInt32

from ..envs import Partition, Partitions
from ..errors import require_whole
from ..progress import Progress
from .candidates import Candidates, Missed, Weights
from .data import Data, load
from .moves import WORDS, propose, uniform
from .posterior import SAMPLES, AbstractPosterior
from .priors import Prior
from .scores import AbstractScore, score_for

LADDERS, RUNGS, HOTTEST = 8, 8, 0.1
"""Independent ladders, the chains of each, and the smallest power."""

ROUND = 16
"""Records that are made between two looks at the clock."""

_PARTS = 4  # of a sweep, after each of which rungs exchange


class Ladders(NamedTuple):
    """The states of all chains."""

    layer: Int8[Array, "ladders rungs d"]
    log_weight: Float64[Array, "ladders rungs"]
    key: UInt32[Array, "2"]


class Round(NamedTuple):
    """What is kept of some steps; `records` are states at power one, a sweep apart."""

    layers: Int8[Array, "records ladders d"]
    edges: Float64[Array, "ladders d d"]
    """The mean of the probability of each edge over the records, row is source."""
    squares: Float64[Array, "ladders d d"]
    """And of its square."""
    swaps: Float64[Array, " gaps"]
    """The share of exchanges between neighbouring powers that were made."""
    accepted: Float64[Array, " rungs"]
    """The share of proposals that were accepted."""


class ChainPosterior(AbstractPosterior):
    r"""What the chains saw at power one, after the first quarter, which is left out.

    Attributes:
        names: of the variables.
        candidates: the parents that were summed over.
        layers: the states, ladder by ladder, a sweep of as many steps as variables apart.
        edges: the mean probability of each edge, of each half of what each ladder is left with.
        squares: and of its square.
        powers: $\beta$ of each rung.
        swaps: the share of exchanges between neighbouring rungs that were made.
        accepted: the share of proposals that were accepted, on each rung.
        steps: of each chain, the first quarter too.
        seconds: that it took.
    """

    names: tuple[str, ...]
    candidates: Candidates
    layers: Int8[np.ndarray, "ladders records d"]
    edges: Float[np.ndarray, "ladders 2 d d"]
    squares: Float[np.ndarray, "ladders 2 d d"]
    powers: Float[np.ndarray, " rungs"]
    swaps: Float[np.ndarray, " gaps"]
    accepted: Float[np.ndarray, " rungs"]
    steps: int
    seconds: float

    @property
    def edge_marginals(self) -> pd.DataFrame:
        return self.frame(self.edges.mean(axis=(0, 1)))

    def sample(self, count: int, *, seed: int = 0) -> Int[np.ndarray, "n d d"]:
        return self.draw(count, seed=seed)[0]

    def draw(
        self, count: int, *, seed: int = 0
    ) -> tuple[Int[np.ndarray, "n d d"], Float[np.ndarray, " n"]]:
        """Graphs, each of a state that was visited, and their log-weights."""
        require_whole("count", count, 0)
        rng = np.random.default_rng(seed)
        layers = np.asarray(self.partitions(count).layer)
        return self.candidates.draw(rng.permutation(layers), rng)

    def partitions(self, count: int) -> Partition:
        """States that were visited, as far apart as possible, as those of `envs.Partitions`."""
        flat = self.layers.reshape(-1, self.layers.shape[-1])
        layers = flat[np.linspace(0, len(flat), count, endpoint=False).astype(int)]
        return Partition(jnp.asarray(layers), jnp.asarray(layers.max(axis=1, initial=0)))

    def top(self, count: int) -> tuple[Int[np.ndarray, "k d d"], Float[np.ndarray, " k"]]:
        """The most frequent graphs among draws, equals by weight, and their share of these."""
        drawn, logs = self.draw(SAMPLES)
        graphs, first, times = np.unique(drawn, axis=0, return_index=True, return_counts=True)
        best = np.lexsort((-logs[first], -times))[:count]
        return graphs[best], times[best] / SAMPLES

    @property
    def r_hat(self) -> pd.DataFrame:
        r"""$\hat R$ of the probability of each edge, from the halves of all ladders.

        The root of the pooled variance over that within halves (Gelman et al., 2013); 1 where an
        edge has the same probability throughout.
        """
        count = self.layers.shape[1] // 2
        means = self.edges.reshape(-1, *self.edges.shape[2:])
        within = np.mean(self.squares.reshape(means.shape) - means**2, axis=0)
        within *= count / (count - 1)
        between = means.var(axis=0, ddof=1)
        pooled = (count - 1) / count * within + between
        # Edges of probability near 0 or 1 in every state: neither variance is more than rounding.
        still = pooled < 1e-12
        ratio = np.where(still, 1.0, pooled / np.where(still, 1.0, np.maximum(within, 1e-12)))
        return self.frame(np.sqrt(np.maximum(ratio, 1.0)))

    def quality(self) -> dict[str, float]:
        """What the chains say of themselves.

        `largest_error_of_an_edge` is the largest standard error of a probability of an edge, from
        how much ladders differ; `missed_weight` and `missed_of_an_edge` are what candidates leave
        out (`candidates.Missed`).
        """
        ladders = self.edges.mean(axis=1)
        error = ladders.std(axis=0, ddof=1) / np.sqrt(len(ladders))
        missed = self.missed()
        return {
            "largest_r_hat": float(self.r_hat.to_numpy().max()),
            "largest_error_of_an_edge": float(error.max()),
            "smallest_swap_rate": float(self.swaps.min(initial=1.0)),
            "smallest_acceptance": float(self.accepted.min()),
            "missed_weight": missed.weight,
            "missed_of_an_edge": missed.edge,
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
        }

    def missed(self, *, samples: int = 1_000, seed: int = 0) -> Missed:
        """What candidates leave out, from so many graphs."""
        if self.candidates.covers_all:
            return Missed(0.0, 0.0)
        return self.candidates.missed(self.sample(samples, seed=seed))


def chains(
    table: Data | pd.DataFrame | Num[np.ndarray, "rows d"] | str | Path,
    *,
    score: AbstractScore | Literal["bge", "bdeu"] | None = None,
    prior: Prior = Prior(),
    temperature: float | Literal["paper"] = 1.0,
    candidates: int | None = None,
    minutes: float | None = 5.0,
    sweeps: int | None = None,
    ladders: int = LADDERS,
    rungs: int = RUNGS,
    seed: int = 0,
    progress: bool = True,
) -> ChainPosterior:
    """The posterior of the graphs of a table by tempered Markov chains, up to 64 variables.

    Args:
        table: as in `exact_posterior`.
        score: BGe, or BDeu if the data are discrete, unless given.
        prior: what is known of the graph.
        temperature: the power of the likelihood, as in `exact_posterior`.
        candidates: parents of a child that are summed over in all combinations, with one besides;
            by default as many as fit (all others for up to 18 variables, 12 of 37).
        minutes: how long to run; the tables of local weights come before.
        sweeps: steps of each chain in place of minutes, as multiples of the number of variables.
        ladders: independent groups of chains.
        rungs: chains at falling powers in each.
        seed: of all draws.
        progress: whether to say how far it is.
    """
    data = table if isinstance(table, Data) else load(table)
    weights = Weights.of(data, score_for(data, score), prior, temperature)
    found = Candidates.of(weights, candidates)
    return run_chains(
        found,
        minutes=minutes,
        sweeps=sweeps,
        ladders=ladders,
        rungs=rungs,
        seed=seed,
        progress=progress,
    )


def run_chains(
    candidates: Candidates,
    *,
    minutes: float | None = None,
    sweeps: int | None = None,
    ladders: int = LADDERS,
    rungs: int = RUNGS,
    seed: int = 0,
    progress: bool = True,
) -> ChainPosterior:
    """The same for local weights that are known already."""
    require_whole("ladders", ladders, 2)
    require_whole("rungs", rungs, 1)
    require_whole("seed", seed, 0)
    if sweeps is not None:
        require_whole("sweeps", sweeps, 1)
    elif minutes is None or not 0 < minutes < np.inf:
        raise ValueError(f"minutes must be positive, got {minutes}: or give sweeps")
    env = candidates.env
    powers = np.geomspace(1.0, HOTTEST, rungs)
    started, rounds = time.perf_counter(), []
    with jax.enable_x64(True):
        # Once: in the loop, the compiler would convert the whole table in every step. And arrays
        # of NumPy must not be handed to compiled programs with and without 64 bits in turn.
        wide = jnp.sum(jnp.asarray(env.log_sums, jnp.float64), axis=-1, keepdims=True)
        env = eqx.tree_at(lambda e: e.log_sums, env, wide)
        env = jax.tree.map(lambda x: jnp.array(x) if isinstance(x, np.ndarray) else x, env)
        state = _start(env, ladders, rungs, jax.random.key(seed))

        def share() -> float:
            if sweeps is not None:
                return len(rounds) * ROUND / sweeps
            assert minutes is not None
            return (time.perf_counter() - started) / (60 * minutes)

        with Progress("chains", 100, shown=progress) as shown:
            while len(rounds) < 4 or share() < 1:
                state, made = _advance(env, jnp.asarray(powers), state)
                rounds.append(jax.tree.map(np.asarray, made))
                shown.update(min(100, int(100 * share())), _note(rounds))
    kept = rounds[-(3 * len(rounds) // 8 * 2) :]  # an even number: halves are compared
    halves = [kept[: len(kept) // 2], kept[len(kept) // 2 :]]

    def mean(name: str) -> np.ndarray:
        parts = [np.mean([getattr(r, name) for r in half], axis=0) for half in halves]
        return np.stack(parts, axis=1)

    return ChainPosterior(
        names=candidates.names,
        candidates=candidates,
        layers=np.moveaxis(np.concatenate([r.layers for r in kept]), 0, 1),
        edges=mean("edges"),
        squares=mean("squares"),
        powers=powers,
        swaps=np.mean([r.swaps for r in kept], axis=0),
        accepted=np.mean([r.accepted for r in kept], axis=0),
        steps=len(rounds) * ROUND * _PARTS * -(-env.size // _PARTS),
        seconds=time.perf_counter() - started,
    )


def _note(rounds: list[Round]) -> str:
    """How far ladders are apart, over the second half."""
    kept = rounds[len(rounds) // 2 :]
    apart = np.ptp(np.mean([r.edges for r in kept], axis=0), axis=0).max()
    return f"ladders differ by {apart:.2g} in an edge"


def log_weight(env: Partitions, layer: Int8[Array, " d"]) -> Float[Array, ""]:
    """Of a whole partition, relative to `env.log_total`."""
    return jnp.sum(env.sums(Partition(layer, jnp.array(0, jnp.int8))).meeting)


def edge_probabilities(env: Partitions, layer: Int8[Array, " d"]) -> Float[Array, "d d"]:
    """Of each edge (row is source) given a whole partition."""
    before, last = env.predecessors(Partition(layer, jnp.array(0, jnp.int8)))
    whole = env.local(before, last).meeting

    def without(vertex: Int[Array, ""]) -> Float[Array, " d"]:
        there = jnp.arange(env.size) != vertex
        left = env.local(before & there, last & there).meeting
        # What has no other vertex in the layer before has it as a parent for sure.
        left = jnp.where(jnp.any(last & there, axis=1), jnp.exp(left - whole), 0.0)
        return jnp.where(before[:, vertex], jnp.clip(1 - left, 0.0, 1.0), 0.0)

    return jax.vmap(without)(jnp.arange(env.size))


@eqx.filter_jit
def mean_edges(
    env: Partitions, layers: Int8[Array, "n d"], shares: Float[Array, " n"]
) -> Float[Array, "d d"]:
    """The probability of each edge over partitions that have these shares, which add up to one."""

    def add(total: Array, one: tuple[Array, Array]) -> tuple[Array, None]:
        return total + one[1] * edge_probabilities(env, one[0]), None

    start = jnp.zeros((env.size, env.size))
    return jax.lax.scan(add, start, (layers, shares))[0]


@eqx.filter_jit
def _start(env: Partitions, ladders: int, rungs: int, key: PRNGKeyArray) -> Ladders:
    """Chains that have wandered where the law is flat, from the fewest layers that there can be."""
    depth = jnp.zeros(env.size, jnp.int8)
    for _ in range(env.size):
        above = jnp.where(jnp.asarray(env.required), depth[:, None] + 1, 0)
        depth = jnp.max(above, axis=0).astype(jnp.int8)
    layer = jnp.broadcast_to(depth, (ladders, rungs, env.size))
    state = Ladders(layer, _each(env, layer), jax.random.key_data(key))
    flat = jnp.full(rungs, HOTTEST / 2)
    return _steps(env, flat, state, 50 * env.size)[0]


def _each(env: Partitions, layer: Int8[Array, "ladders rungs d"]) -> Float[Array, "ladders rungs"]:
    return jax.vmap(jax.vmap(lambda one: log_weight(env, one)))(layer)


def _steps(
    env: Partitions, powers: Float[Array, " rungs"], state: Ladders, count: int
) -> tuple[Ladders, Float[Array, " rungs"]]:
    """So many steps of each chain, without an exchange; and the share that was accepted."""
    key, some = jax.random.split(jax.random.wrap_key_data(state.key))

    def step(carry: tuple[Array, Array], key: PRNGKeyArray):
        layer, log = carry
        words = jax.random.bits(key, (*log.shape, WORDS), jnp.uint32)
        proposed, log_ratio = jax.vmap(jax.vmap(propose))(layer, words)
        new = _each(env, proposed)
        taken = jnp.log(uniform(words[..., 0])) < powers * (new - log) + log_ratio
        taken &= new > -jnp.inf
        layer = jnp.where(taken[..., None], proposed, layer)
        return (layer, jnp.where(taken, new, log)), jnp.mean(taken, axis=0)

    start, keys = (state.layer, state.log_weight), jax.random.split(some, count)
    (layer, log), accepted = jax.lax.scan(step, start, keys)
    return Ladders(layer, log, jax.random.key_data(key)), jnp.mean(accepted, axis=0)


@eqx.filter_jit
def _advance(
    env: Partitions, powers: Float64[Array, " rungs"], state: Ladders
) -> tuple[Ladders, Round]:
    """A round: sweeps, with exchanges on the way and a record at the end of each."""

    def part(state: Ladders, _):
        state, accepted = _steps(env, powers, state, -(-env.size // _PARTS))
        state, even = _exchange(powers, state, 0)
        state, odd = _exchange(powers, state, 1)
        return state, (even + odd, accepted)

    def record(state: Ladders, _):
        state, (swaps, accepted) = jax.lax.scan(part, state, length=_PARTS)
        cold = state.layer[:, 0]
        edges = jax.vmap(lambda layer: edge_probabilities(env, layer))(cold)
        means = (jnp.mean(swaps, axis=0), jnp.mean(accepted, axis=0))
        return state, (cold, edges, edges**2, *means)

    state, (layers, *rest) = jax.lax.scan(record, state, length=ROUND)
    return state, Round(layers, *(jnp.mean(x, axis=0) for x in rest))


def _exchange(
    powers: Float[Array, " rungs"], state: Ladders, first: int
) -> tuple[Ladders, Float[Array, " gaps"]]:
    """Each rung from `first` on, every second one, with the next; and the share that was made."""
    key, some = jax.random.split(jax.random.wrap_key_data(state.key))
    rungs = powers.size
    gap = jnp.arange(rungs - 1)
    gain = (powers[:-1] - powers[1:]) * (state.log_weight[:, 1:] - state.log_weight[:, :-1])
    uniform = jax.random.uniform(some, gain.shape)
    made = (jnp.log(uniform) < gain) & (gap % 2 == first)
    none = jnp.zeros((len(made), 1), bool)
    up, down = jnp.concatenate([made, none], axis=1), jnp.concatenate([none, made], axis=1)
    source = jnp.arange(rungs) + up - down
    layer = jnp.take_along_axis(state.layer, source[..., None], axis=1)
    log = jnp.take_along_axis(state.log_weight, source, axis=1)
    return Ladders(layer, log, jax.random.key_data(key)), jnp.mean(made, axis=0)
