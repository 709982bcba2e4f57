"""Train a sampler of graphs for a table: for more variables than can be summed over.

Up to `BY_EDGES` variables graphs are built edge by edge. Beyond, their root partitions are built
vertex by vertex, with the parents summed out (`candidates`): at most $2d$ steps in place of
$d (d - 1) / 2$. Half of every batch then leads to partitions that Markov chains have found: without
them a sampler loses modes, and nothing that it draws can tell.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Num

from ..envs import Dags, Partition, Partitions
from ..errors import NatgfnError, require_whole
from ..metrics import draw_back
from ..objectives import Huber, TrajectoryBalance
from ..optim import AbstractRule, Adam, Cosine
from ..policies import AbstractDesign, Network, Transformer
from ..sampling import UniformMixture
from ..sources import Known
from ..training import (
    RECORD,
    Record,
    Run,
    Setup,
    arrays_in,
    has_checkpoint,
    lasting,
    paced,
    prolong,
    read_header,
    run,
)
from ..watch import AbstractWatcher
from .candidates import ENTRIES, Candidates, Weights
from .data import Data, Edge, load
from .guide import Guided
from .mcmc import run_chains
from .posterior import SAMPLES
from .priors import Prior, log_weights
from .sampler import MOST, TOGETHER, Draws, SampledPosterior, draw
from .scores import AbstractScore, score_for
from .subsets import table_bytes
from .trust import OBJECTS

UPDATES, BATCH = 4_000, 64

_RATE, _LOG_Z_RATE = 1e-3, 1e-1
_SHARE = 1 / 40  # of the deviation of the first log-weights: what log Z moves, if that is more
_LEAST = 0.02  # the last rate, beside the first
# Of partitions: at 12 variables, after 1,500 updates, EUBO less ELBO was 3.0, 1.2 and 0.7 nats at
# rates of 1e-3, 2e-3 and 5e-3; at 13, 1e-2 halved the effective share.
_WIDE_RATE, _WIDE_LOG_Z_RATE = 5e-3, 0.3
_CHAINS = 2**20  # sets the seed of chains for training apart from those of evidence

BY_EDGES = 5
"""The most variables for which `fit` builds graphs edge by edge. Of 6 variables with strong effects
the worst edge was 0.17 and 0.21 from exact that way, after 1,500 updates, and 0.013 and 0.011 by
root partitions, after 2,500; of 8 with weak effects 0.23 and 0.20, and 0.013 and 0.010
(`results/bench.verdicts.md`)."""

TABULATED = 16
"""The most variables for which the weights of all sets of parents are tabulated."""

STEPS, KNOWN = 40_000, 8_192
"""Of each chain whose partitions are replayed, and how many of these."""

_REPLAYED = 0.2  # of the minutes of a fit: those of these chains


def fit(
    table: Data | pd.DataFrame | Num[np.ndarray, "rows d"] | str | Path,
    *,
    score: AbstractScore | Literal["bge", "bdeu"] | None = None,
    prior: Prior = Prior(),
    forbid: Iterable[Edge] = (),
    require: Iterable[Edge] = (),
    temperature: float | Literal["paper"] = 1.0,
    candidates: int | None = None,
    policy: AbstractDesign | None = None,
    rule: AbstractRule | None = None,
    updates: int = UPDATES,
    minutes: float | None = None,
    batch: int | None = None,
    seed: int = 0,
    seeds: int = 1,
    samples: int = SAMPLES,
    watch: tuple[AbstractWatcher, ...] = (),
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    log: Callable[[dict[str, Any]], None] | None = None,
) -> SampledPosterior:
    """Train a GFlowNet to draw graphs in proportion to their posterior probability.

    Trajectory balance with a Huber penalty of threshold 1: one wrong edge can change the
    likelihood of a graph by a factor of e^100, and squares of such residuals would drown the rest.

    Args:
        table: as in `exact_posterior`.
        score: BGe, or BDeu if the data are discrete, unless given.
        prior: what is known of the graph.
        forbid: edges that no graph has, besides those of the prior.
        require: edges that every graph has, besides those of the prior.
        temperature: the power of the likelihood, as in `exact_posterior`.
        candidates: parents of a child that are summed over, as in `chains`, where graphs are not
            built edge by edge.
        policy: what learns to correct a head start: a network, or the paper's `Transformer`, which
            builds graphs of up to 16 variables edge by edge. By default two layers of 128 units
            for up to 5 variables, edge by edge too, and of 256 beyond.
        rule: how a batch becomes an update; by default Adam with rates that fall like a cosine.
        updates: how many.
        minutes: for everything up to the end of training, in place of `updates`: as many are made
            as the speed of the first ones allows. Draws come afterwards. A run that is resumed
            goes on with the updates that it planned, and with more if there is time.
        batch: trajectories an update; 64 by default, or 128.
        seed: of the parameters and of all draws.
        seeds: samplers, trained one after the other, each of which draws its share of the samples.
        samples: graphs that are drawn from the trained samplers.
        watch: what else to look at in training (`natgfn.watch`).
        out: a folder for the record and the checkpoint; nothing is written without it.
        resume: go on from the checkpoint in `out`, if there is one.
        progress: whether to show a progress bar.
        log: called with each line of the record.
    """
    require_whole("samples", samples, 1)
    if minutes is not None and not 0 < minutes < np.inf:
        raise ValueError(f"minutes must be positive, got {minutes}")
    started = time.perf_counter()
    begun = Path(out) if resume and out is not None and has_checkpoint(Path(out)) else None
    data = table if isinstance(table, Data) else load(table)
    prior = replace(prior, forbid=(*prior.forbid, *forbid), require=(*prior.require, *require))
    scored = score_for(data, score)
    target: Dags | Candidates
    if by_edges(len(data.names), policy):
        target = Dags(log_weights(data, scored, prior, temperature))
        policy = Network(128, 2) if policy is None else policy
        batch = BATCH if batch is None else batch
        setup = setup_of(target, policy, rule, updates, batch, seed, seeds, watch)
    else:
        target = Candidates.of(Weights.of(data, scored, prior, temperature), candidates)
        policy = Network(256, 2) if policy is None else policy
        batch = 2 * BATCH if batch is None else batch
        if begun is None:
            share = None if minutes is None else _REPLAYED * minutes
            known = known_partitions(target, seed, minutes=share, progress=progress)
        else:
            known = _known_in(begun)
        setup = wide_setup(target, known, policy, rule, updates, batch, seed, seeds, watch)
    seconds = None
    if minutes is not None:
        left = 60 * minutes - (time.perf_counter() - started)
        setup = paced(setup, left) if begun is None else _going_on(begun, setup, left)
        seconds = 60 * minutes - (time.perf_counter() - started)
    trained = run(setup, out=out, resume=resume, seconds=seconds, progress=progress, log=log)
    return posterior_of(trained, target, data.names, samples)


def by_edges(count: int, policy: AbstractDesign | None = None) -> bool:
    """Whether `fit` builds graphs of so many variables edge by edge."""
    return count <= (TABULATED if isinstance(policy, Transformer) else BY_EDGES)


def setup_of(
    env: Dags,
    policy: AbstractDesign,
    rule: AbstractRule | None,
    updates: int,
    batch: int,
    seed: int,
    seeds: int = 1,
    watch: tuple[AbstractWatcher, ...] = (),
) -> Setup:
    r"""The run that `fit` makes of graphs edge by edge.

    $\log Z$ starts at the mean of the log-weights of the first sampler's graphs. Where the guide is
    far off, as with many variables, it has far to go: its rate is in proportion to their
    deviation.
    """
    shown = {"batch": batch, "updates": updates, "seed": seed, "seeds": seeds, "watch": watch}
    setup = _guided(env, policy, proposal=UniformMixture(0.01), **shown)
    first = draw(env, setup.flow(seed), 500, seed=seed).log_weights
    rates = (_RATE, max(_LOG_Z_RATE, _SHARE * float(first.std())))
    return _from(setup, rule or _falling(*rates, updates), float(first.mean()))


def _guided(env: Dags | Partitions, policy: AbstractDesign, **settings: Any) -> Setup:
    """What all samplers of graphs have in common."""
    objective = TrajectoryBalance(Huber(1.0))
    return Setup(env, policy=Guided(policy), objective=objective, enumerate=False, **settings)


def _falling(rate: float, log_z_rate: float, updates: int) -> Adam:
    """Adam with rates that fall over so many updates."""
    falling = [Cosine(first, updates, _LEAST * first) for first in (rate, log_z_rate)]
    return Adam(falling[0], log_z_rate=falling[1])


def _from(setup: Setup, rule: AbstractRule, log_z: float) -> Setup:
    return replace(setup, rule=rule, log_z=float(np.float32(log_z)))


def known_partitions(
    target: Candidates,
    seed: int,
    *,
    steps: int = STEPS,
    minutes: float | None = None,
    progress: bool = False,
) -> Partition:
    """What chains find for a sampler to learn from: so many steps of each, or so many minutes."""
    sweeps = -(-steps // target.env.size) if minutes is None else None
    chains = run_chains(
        target, minutes=minutes, sweeps=sweeps, seed=seed + _CHAINS, progress=progress
    )
    return chains.partitions(KNOWN)


def _known_in(folder: Path) -> Partition:
    """The known partitions of a run that has begun."""
    try:
        objects = read_header(folder)["configuration"]["source"]["objects"]
        arrays = arrays_in(folder)
        return Partition(*(jnp.asarray(arrays[part["array"]]) for part in objects))
    except (KeyError, TypeError) as error:
        raise _not_a_fit(folder, error) from error


def _updates_in(folder: Path) -> int:
    """The updates of a run that has begun."""
    try:
        return int(read_header(folder)["configuration"]["updates"])
    except (KeyError, TypeError, ValueError) as error:
        raise _not_a_fit(folder, error) from error


def _going_on(folder: Path, setup: Setup, seconds: float) -> Setup:
    """A run that has begun, with the updates that it planned, or with more if there is time.

    The rates are then those of a run that was to be as long as all of it from the start.
    """
    planned = _updates_in(folder)
    setup = lasting(setup, planned)
    _, lines = Record(folder / RECORD).read()
    longer = lines[-1]["step"] + paced(setup, seconds).updates if lines else planned
    if longer <= planned:
        return setup
    setup = lasting(setup, longer)
    prolong(folder, setup)
    return setup


def _not_a_fit(folder: Path, error: Exception) -> NatgfnError:
    return NatgfnError(f"the record in {folder} is not that of this fit: {error!r}")


def wide_setup(
    target: Candidates,
    known: Partition,
    policy: AbstractDesign,
    rule: AbstractRule | None,
    updates: int,
    batch: int,
    seed: int,
    seeds: int = 1,
    watch: tuple[AbstractWatcher, ...] = (),
) -> Setup:
    r"""The run that `fit` makes of root partitions.

    $\log Z$ starts half way between what the first sampler's own draws and the known partitions
    say of it.

    Args:
        target: local weights.
        known: partitions that chains have found.
        policy: as in `fit`, as are the following.
        rule: how a batch becomes an update.
        updates: how many.
        batch: trajectories an update, half of them to known partitions.
        seed: of the parameters and of all draws.
        seeds: samplers.
        watch: what else to look at.
    """
    env = target.env
    shown = {"batch": batch, "updates": updates, "seed": seed, "seeds": seeds, "watch": watch}
    setup = _guided(env, policy, source=Known(known), proposal=UniformMixture(0.02), **shown)
    first = setup.flow(seed)
    places = np.linspace(0, len(known.layer), OBJECTS, endpoint=False).astype(int)
    some = jax.tree.map(lambda x: x[places], known)  # as many as `judge` takes: one program
    back = draw_back(env, first, some, key=jax.random.key(seed)).log_weights
    ends = [draw(target, first, 500, seed=seed).log_weights - env.log_total, back]
    middle = float(np.mean([np.median(logs) for logs in ends]))
    return _from(setup, rule or _falling(_WIDE_RATE, _WIDE_LOG_Z_RATE, updates), middle)


def posterior_of(
    trained: Run, target: Dags | Candidates, names: tuple[str, ...], samples: int
) -> SampledPosterior:
    """What the trained samplers draw, each its share."""
    setup = trained.setup
    flows = tuple(trained.flow(number) for number in range(setup.seeds))
    each = -(-samples // setup.seeds)
    parts = [draw(target, flow, each, seed=setup.seed + 1 + n) for n, flow in enumerate(flows)]
    rejected = int(np.sum(trained.state.rejected))
    return SampledPosterior(names, target, flows, Draws.together(parts), rejected)


def fit_memory(count: int) -> int:
    """About the bytes that `fit` needs for so many variables, Python and its libraries apart.

    Trajectories count twice: their states, of which copies are made, and a logit an action.
    """
    if not by_edges(count):
        return 6 * 8 * ENTRIES
    pairs = count * (count - 1)
    states = 2 * count**2 * (pairs // 2 + 2)
    together = max(BATCH, min(TOGETHER, MOST // states))
    paths = 2 * together * (3 * states + 4 * (pairs + 1) * (pairs // 2 + 1))
    guide = 2 * 4 * count * 3 ** (count - 1)
    return guide + max(3 * table_bytes(count), paths)
