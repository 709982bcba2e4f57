"""Train a sampler of graphs for a table: for more variables than can be summed over."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Num

from ..envs import AbstractDags
from ..errors import require_whole
from ..objectives import Huber, TrajectoryBalance
from ..optim import AbstractRule, Adam, Cosine
from ..policies import AbstractDesign, Network
from ..sampling import UniformMixture
from ..training import Run, Setup, run
from ..watch import AbstractWatcher
from .data import Data, Edge, load
from .guide import Guided
from .posterior import SAMPLES
from .priors import Prior
from .sampler import MOST, TOGETHER, Draws, SampledPosterior, draw
from .scores import AbstractScore, score_for
from .subsets import table_bytes
from .target import TABULATED, environment

UPDATES, BATCH = 4_000, 64

_RATE, _LOG_Z_RATE = 1e-3, 1e-1
_SHARE = 1 / 40  # of the deviation of the first log-weights: what log Z moves, if that is more
_LEAST = 0.02  # the last rate, beside the first
_CANDIDATES = 10  # of each child, where the variables are too many for all of them


def fit(
    table: Data | pd.DataFrame | Num[np.ndarray, "rows d"] | str | Path,
    *,
    score: AbstractScore | Literal["bge", "bdeu"] | None = None,
    prior: Prior = Prior(),
    forbid: Iterable[Edge] = (),
    require: Iterable[Edge] = (),
    temperature: float | Literal["paper"] = 1.0,
    policy: AbstractDesign = Network(128, 2),
    rule: AbstractRule | None = None,
    updates: int = UPDATES,
    batch: int = BATCH,
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

    Up to 16 variables the weights of all sets of parents are tabulated. Beyond, those of BGe are
    computed for each graph, and `SampledPosterior.quality` is the only judge of the result.

    Trajectory balance with a Huber penalty of threshold 1: one wrong edge can change the
    likelihood of a graph by a factor of e^100, and squares of such residuals would drown the rest.

    Args:
        table: as in `exact_posterior`.
        score: BGe, or BDeu if the data are discrete, unless given.
        prior: what is known of the graph.
        forbid: edges that no graph has, besides those of the prior.
        require: edges that every graph has, besides those of the prior.
        temperature: the power of the likelihood, as in `exact_posterior`.
        policy: what learns to correct a `Guide`: a network, or the paper's `Transformer`.
        rule: how a batch becomes an update; by default Adam with rates that fall like a cosine.
        updates: how many.
        batch: new trajectories an update.
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
    data = table if isinstance(table, Data) else load(table)
    prior = replace(prior, forbid=(*prior.forbid, *forbid), require=(*prior.require, *require))
    env = environment(data, score_for(data, score), prior, temperature)
    setup = setup_of(env, policy, rule, updates, batch, seed, seeds, watch)
    trained = run(setup, out=out, resume=resume, progress=progress, log=log)
    return posterior_of(trained, data.names, samples)


def setup_of(
    env: AbstractDags,
    policy: AbstractDesign,
    rule: AbstractRule | None,
    updates: int,
    batch: int,
    seed: int,
    seeds: int = 1,
    watch: tuple[AbstractWatcher, ...] = (),
) -> Setup:
    r"""The run that `fit` makes.

    $\log Z$ starts at the mean of the log-weights of the first sampler's graphs. Where the guide is
    far off, as with many variables, it has far to go: its rate is in proportion to their
    deviation.
    """
    setup = Setup(
        env,
        policy=Guided(policy, candidates(env.size)),
        objective=TrajectoryBalance(Huber(1.0)),
        proposal=UniformMixture(0.01),
        batch=batch,
        updates=updates,
        seed=seed,
        seeds=seeds,
        enumerate=False,
        watch=watch,
    )
    first = draw(env, setup.flow(seed), 500, seed=seed).log_weights
    if rule is None:
        rates = (_RATE, max(_LOG_Z_RATE, _SHARE * float(first.std())))
        falling = [Cosine(rate, updates, _LEAST * rate) for rate in rates]
        rule = Adam(falling[0], log_z_rate=falling[1])
    return replace(setup, rule=rule, log_z=float(np.float32(first.mean())))


def posterior_of(trained: Run, names: tuple[str, ...], samples: int) -> SampledPosterior:
    """What the trained samplers draw, each its share."""
    env, setup = trained.setup.env, trained.setup
    assert isinstance(env, AbstractDags)
    flows = tuple(trained.flow(number) for number in range(setup.seeds))
    each = -(-samples // setup.seeds)
    draws = [draw(env, flow, each, seed=setup.seed + 1 + n) for n, flow in enumerate(flows)]
    rejected = int(np.sum(trained.state.rejected))
    return SampledPosterior(names, env, flows, Draws.together(draws), rejected)


def candidates(count: int) -> int:
    """How many parents of a child the guide sums over."""
    return count - 1 if count <= TABULATED else _CANDIDATES


def fit_memory(count: int) -> int:
    """About the bytes that `fit` needs for so many variables, Python and its libraries apart.

    Trajectories count twice: their states, of which copies are made, and a logit an action.
    """
    pairs = count * (count - 1)
    states = 2 * count**2 * (pairs // 2 + 2)
    together = max(BATCH, min(TOGETHER, MOST // states))
    paths = 2 * together * (3 * states + 4 * (pairs + 1) * (pairs // 2 + 1))
    guide = 2 * 4 * count * 3 ** candidates(count)
    tables = 3 * table_bytes(count) if count <= TABULATED else 0
    return guide + max(tables, paths)
