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

from ..envs.dags import Dags
from ..objectives import Huber, TrajectoryBalance
from ..optim import Adam
from ..policies import AbstractDesign, Flow, Network, Uniform
from ..sampling import UniformMixture
from ..train import Algorithm, advance
from ..train.algorithm import stack_seeds
from ..train.loop import progress_bar
from .data import Data, Edge, load
from .guide import Guide, Guided
from .posterior import SAMPLES
from .priors import Prior, log_weights
from .sampler import SampledPosterior, draw
from .scores import AbstractScore, score_for

UPDATES = 4_000

_RATE, _LOG_Z_RATE = 1e-3, 1e-1
_LEAST = 0.02  # the last rate, beside the first
_CHUNK = 50  # updates from one look at the rate to the next


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
    batch: int = 64,
    seed: int = 0,
    progress: bool = True,
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
    env = Dags(log_weights(data, score_for(data, score), prior, temperature))
    flow = train(env, policy, updates, batch, seed, progress)
    return SampledPosterior(data.names, env, flow, draw(env, flow, SAMPLES, seed=seed + 1))


def train(
    env: Dags, policy: AbstractDesign, updates: int, batch: int, seed: int, progress: bool
) -> Flow:
    """The flow after all updates; rates fall from the first to the last like a cosine."""
    forward = Guided(Guide.of(env), policy(env, key=jax.random.key(seed)))
    flow = Flow(forward, Uniform.backward(env), jnp.array(0.0))
    log_z = np.float32(draw(env, flow, 500, seed=seed).log_weights.mean())
    flow = eqx.tree_at(lambda f: f.log_z, flow, jnp.asarray(log_z))
    algorithm = Algorithm(
        env=env,
        rule=Adam(_RATE, log_z_rate=_LOG_Z_RATE),
        objective=TrajectoryBalance(Huber(1.0)),
        proposal=UniformMixture(0.01),
        batch=batch,
    ).with_traced_numbers()
    states = stack_seeds(lambda seed: algorithm.init(flow, seed), [seed])
    with progress_bar(progress) as bar:
        task = bar.add_task("training", total=updates, note="")
        for done in range(0, updates, _CHUNK):
            height = _LEAST + (1 - _LEAST) * (1 + np.cos(np.pi * done / updates)) / 2
            rates = [jnp.asarray(height * rate) for rate in (_RATE, _LOG_Z_RATE)]
            algorithm = eqx.tree_at(lambda a: [a.rule.rate, a.rule.log_z_rate], algorithm, rates)
            count = min(_CHUNK, updates - done)
            states, losses = advance(algorithm, states, jnp.array(count))
            bar.update(task, completed=done + count, note=f"loss {float(losses[0]):.3g}")
    return jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, states.flow)
