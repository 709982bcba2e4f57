"""Trajectory balance with natgfn, by Adam or by its default rule for networks."""

import sys
from dataclasses import replace

import equinox as eqx
import jax

from benchmarks.measure import Timer, Walker, mean_length
from natgfn.dag import BGe, Dags, Prior, load, log_weights
from natgfn.envs import Hypergrid
from natgfn.optim import AbstractRule, Adam, SampleSpace
from natgfn.training import Setup, decide

from .serve import serve
from .tasks import DEPTH, RATE, WIDTH, Task, observations

RULES: dict[str, AbstractRule] = {
    "adam": Adam(RATE, log_z_rate=RATE),
    # So much damping keeps it where it is, at the same work.
    "natural": replace(SampleSpace.network(), damping=1e9, log_z_rate=RATE),
}


class Sampler:
    def __init__(self, task: Task, rule: AbstractRule):
        if task.kind == "grid":
            env = Hypergrid(task.side, task.dims)
        else:
            data = load(observations(task.dims), standardise=False)
            env = Dags(log_weights(data, BGe(), Prior()))
        self._env = decide(Setup(env))[0].env
        self._rule, self.batch = rule, task.batch
        self.shift(0.0)
        trained = jax.tree.leaves(eqx.filter(self._timer.states.flow, eqx.is_inexact_array))
        self.parameters = sum(x.size for x in trained)

    def shift(self, offset: float) -> None:
        design = Walker(offset, WIDTH, DEPTH)
        self._timer = Timer(self._env, self._rule, self.batch, design)

    def length(self) -> float:
        return mean_length(self._env, self._timer.flow().forward)

    def update(self, count: int) -> None:
        self._timer.seconds(count)


if __name__ == "__main__":
    serve(lambda task: Sampler(task, RULES[sys.argv[1]]), "jax", "equinox", "optax", "numpy")
