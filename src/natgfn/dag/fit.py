"""Train a sampler of graphs for a table: for more variables than can be summed over."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Num

from ..envs.dags import AbstractDags
from ..objectives import Huber, TrajectoryBalance
from ..optim import Adam
from ..policies import AbstractDesign, Flow, Network, Uniform
from ..sampling import UniformMixture
from ..train import Algorithm
from ..train.algorithm import of_seed, stack_seeds
from ..train.loop import follow, look_at_losses, note_loss
from .data import Data, Edge, load
from .guide import Guide, Guided
from .posterior import SAMPLES
from .priors import Prior
from .sampler import MOST, TOGETHER, SampledPosterior, draw
from .scores import AbstractScore, score_for
from .subsets import table_bytes
from .target import TABULATED, environment

UPDATES, BATCH = 4_000, 64

_RATE, _LOG_Z_RATE = 1e-3, 1e-1
_SHARE = 1 / 40  # of the deviation of the first log-weights: what log Z moves, if that is more
_LEAST = 0.02  # the last rate, beside the first
_CHUNK = 50  # updates from one look at the rate to the next
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
    updates: int = UPDATES,
    batch: int = BATCH,
    seed: int = 0,
    progress: bool = True,
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
        updates: how many.
        batch: new trajectories an update.
        seed: of the parameters and of all draws.
        progress: whether to show a progress bar.
    """
    for name, value in {"updates": updates, "batch": batch}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    data = table if isinstance(table, Data) else load(table)
    prior = replace(prior, forbid=(*prior.forbid, *forbid), require=(*prior.require, *require))
    env = environment(data, score_for(data, score), prior, temperature)
    flow, rejected = train(env, policy, updates, batch, seed, progress)
    draws = draw(env, flow, SAMPLES, seed=seed + 1)
    return SampledPosterior(data.names, env, flow, draws, rejected)


def train(
    env: AbstractDags, policy: AbstractDesign, updates: int, batch: int, seed: int, progress: bool
) -> tuple[Flow, int]:
    r"""The flow after all updates, and how many were rejected.

    Rates fall from the first update to the last like a cosine. Where the guide is far off, as
    with many variables, $\log Z$ has far to go: it starts at the mean of the first log-weights,
    and its rate is in proportion to their deviation.
    """
    forward = Guided(Guide.of(env, candidates(env.size)), policy(env, key=jax.random.key(seed)))
    flow = Flow(forward, Uniform.backward(env), jnp.array(0.0))
    first = draw(env, flow, 500, seed=seed).log_weights
    flow = eqx.tree_at(lambda f: f.log_z, flow, jnp.asarray(np.float32(first.mean())))
    log_z_rate = max(_LOG_Z_RATE, _SHARE * float(first.std()))
    algorithm = Algorithm(
        env=env,
        rule=Adam(_RATE, log_z_rate=log_z_rate),
        objective=TrajectoryBalance(Huber(1.0)),
        proposal=UniformMixture(0.01),
        batch=batch,
    ).with_traced_numbers()

    def at(done: int) -> Algorithm:
        height = _LEAST + (1 - _LEAST) * (1 + np.cos(np.pi * done / updates)) / 2
        rates = [jnp.asarray(height * rate) for rate in (_RATE, log_z_rate)]
        return eqx.tree_at(lambda a: [a.rule.rate, a.rule.log_z_rate], algorithm, rates)

    states, history = follow(
        at,
        stack_seeds(lambda seed: algorithm.init(flow, seed), [seed]),
        look_at_losses,
        {},
        updates=updates,
        every=(_CHUNK,),
        note=note_loss,
        progress=progress,
    )
    return of_seed(states.flow, 0), sum(history[-1]["rejected"])


def candidates(count: int) -> int:
    """How many parents of a child the guide sums over."""
    return count - 1 if count <= TABULATED else _CANDIDATES


def memory(count: int) -> int:
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
