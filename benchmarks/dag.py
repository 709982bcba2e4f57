"""What an update of the paper's graph network costs, beside the machine's matrix products.

Operations are counted as the plain algorithm would do them, and only for states that were
visited: a multiplication and an addition for each entry of each matrix product, for tokens one
by one, no skipping of equal ones; nothing else counts, and neither do computing again and
padding. A gradient counts twice as much as the evaluation it belongs to.
"""

import time

import jax
import jax.numpy as jnp
from rich.console import Console

from natgfn.algorithm import advance
from natgfn.dag import PAPER_PENALTY, BGe, Dags, Prior, Transformer, load, log_weights, sachs
from natgfn.objectives import Huber, TrajectoryBalance
from natgfn.optim import Adam
from natgfn.sampling import UniformMixture
from natgfn.sources import Recall
from natgfn.training import Setup, decide

from .measure import Measurement, inform

ROUNDS = 5
RATE = 1e-9
"""Next to nothing: all updates do the same work."""


def bench_dag() -> int:
    """Measure an update on the Sachs data; 0 if the limit holds, 1 otherwise."""
    with Console(stderr=True).status("measuring"):
        return 0 if _measure() else 1


def operations(design: Transformer, variables: int) -> int:
    """Of the network in one state."""
    head = design.width // design.heads
    attention = 4 * design.width**2 + 2 * design.width * head
    token = design.depth * (attention + 2 * design.width * design.feed) + design.width
    return 2 * (variables * (variables - 1) * token + design.width)


def _measure() -> bool:
    prior = Prior(edge_penalty=PAPER_PENALTY)
    env = Dags(log_weights(load(sachs(), log=True), BGe(), prior, "paper"))
    design, batch = Transformer(), 64
    setup, _ = decide(
        Setup(
            env,
            Adam(RATE, log_z_rate=RATE, clip=1.0),
            policy=design,
            objective=TrajectoryBalance(Huber(30.0)),
            proposal=UniformMixture(0.2),
            source=Recall(),
            batch=batch,
            enumerate=False,
        )
    )
    algorithm, states = setup.algorithm(), setup.start()

    def update():
        nonlocal states
        states, losses = advance(algorithm, states, jnp.array(1))
        return losses

    matrix, product = jnp.ones((2048, 2048)), jax.jit(jnp.matmul)
    spent, peak = float("inf"), 0.0
    for _ in range(ROUNDS + 1):  # the first compiles
        spent = min(spent, _seconds(update))
        peak = max(peak, 2 * 2048**3 / _seconds(lambda: product(matrix, matrix)))
    filled = min(int(states.memory.seen[0]), states.memory.lengths.shape[1])
    length = float(jnp.mean(states.memory.lengths[0, :filled]))
    # A rollout, and an evaluation with its gradient, each of a batch of trajectories.
    useful = (1 + 3) * batch * length * operations(design, env.size)
    inform("this machine: a float32 matrix product", f"{1e-9 * peak:.0f} GFLOP/s")
    inform("Sachs, Transformer: mean length of a trajectory", f"{length:.1f}")
    inform("Sachs, Transformer: an update", f"{1e3 * spent:.0f} ms")
    inform("Sachs, Transformer: new transitions", f"{batch * length / spent:.0f} /s")
    inform("Sachs, Transformer: useful operations", f"{1e-9 * useful / spent:.1f} GFLOP/s")
    inform("Sachs, Transformer: share of the matrix product", f"{useful / spent / peak:.0%}")
    slower = Measurement("Sachs, Transformer: an update / at full speed", 0, 5.0, "x")
    return slower._replace(value=spent * peak / useful).report()


def _seconds(function) -> float:
    start = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - start
