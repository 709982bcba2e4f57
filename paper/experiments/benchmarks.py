r"""The field's benchmarks: natgfn's default and its natural step against Adam, as a peer and tuned.

Not in the paper. Targets, networks, batches, rates and exploration are those of gfnx, the fastest
library for such tasks. Four methods a task: Adam at the peer's rates; Adam at the best of a sweep
of its rate, with log Z at 0.1; natgfn's default, untouched, which chooses policy, rule and source
itself, and with a network explores nothing; and the natural step in sample space on the peer's
network and exploration, at the best of a sweep of its damping, with as many trials as Adam had.
Sweeps are on a seed of their own, with a fifth of the updates, by the metric that the task is
judged by.

That metric is the exact KL of the terminal law from the target where states are listed, for all
methods alike; the rank correlation of log q with log R on a test set for bit sequences; and
elsewhere log Z, which is known, less the ELBO of 512 draws: the KL of trajectories. Where states
are listed only to be judged, because there are more than `train` lists by itself, the default
is what it would have chosen without a list.

Equal time is counted in milliseconds an update, all methods of a task in turn in one process,
without evaluations; of two methods, each is judged at the last line of its record before the faster
one is done. A comparison is won or lost where means over seeds differ by more than twice the
standard error of their difference, and level elsewhere.

What differs from the peer: its AdamW on bit sequences decays weights by 1e-5, ours does not; its
Transformer has softmax attention, ours linear attention of the same layers, heads and width; it
fills the sites of the Ising torus in any order, ours come in a fixed one; on TFBind8 and QM9-small
it makes a million updates. QM9-small needs a table that natgfn does not have: the variable
`NATGFN_QM9_SMALL` names its file, and without one the task is left out.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Timer
from natgfn.envs import (
    AbstractEnv,
    AppendedBitSequences,
    Assignments,
    BitSequences,
    Hypergrid,
    QM9Small,
    TFBind8,
)
from natgfn.optim import AbstractRule, Adam, SampleSpace
from natgfn.policies import AbstractDesign, Network, Transformer, Uniform
from natgfn.sampling import AbstractProposal, OnPolicy, UniformMixture
from natgfn.statespace import enumerate_states
from natgfn.training import RECORD, Record, Setup, decide, describe
from natgfn.training import run as train
from natgfn.watch import Sampled

from .benchmarks_page import ADAM, DEFAULT, HIGHER, METHODS, METRICS, NATURAL, PEER
from .benchmarks_page import figures as figures
from .benchmarks_page import page as page
from .structured_targets import torus
from .study import SWEEP_SEED, folder_for, middle, steps_done

RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
DAMPINGS = (2.5, 5.0, 10.0, 20.0, 40.0)
SHORTER = 5
"""Times that the runs of a sweep are shorter."""
QM9 = "NATGFN_QM9_SMALL"
MOST_STATES = 2**20
"""That are listed for exact metrics."""


@dataclass(frozen=True)
class Task:
    """A target, and how the peer trains on it.

    Attributes:
        make: the environment.
        updates: of every method.
        metric: by which methods are judged.
        network: the peer's.
        peer: its rule.
        batch: trajectories an update.
        proposal: its exploration.
        backward: its backward policy; natural steps have the uniform one.
        listed: whether all states are listed, for exact metrics.
        unlisted: whether `train` would not list the states by itself: the default is then what it
            chooses without a list.
        test: objects of the test set in the end, where there is one.
    """

    make: Callable[[], AbstractEnv]
    updates: int
    metric: str
    network: AbstractDesign
    peer: Adam
    batch: int = 16
    proposal: AbstractProposal = OnPolicy()
    backward: AbstractDesign = Uniform()
    listed: bool = False
    unlisted: bool = False
    test: int = 7_200

    @property
    def env(self) -> AbstractEnv:
        return _env(self.make, self.listed)

    def shortened(self, share: int) -> "Task":
        """The same in a part of the updates, exploration too."""
        proposal = self.proposal
        if isinstance(proposal, UniformMixture) and proposal.fade is not None:
            proposal = replace(proposal, fade=max(1, proposal.fade // share))
        return replace(self, updates=max(1, self.updates // share), proposal=proposal)


@cache
def _env(make: Callable[[], AbstractEnv], listed: bool) -> AbstractEnv:
    return enumerate_states(make(), max_states=MOST_STATES) if listed else make()


@dataclass(frozen=True)
class Scale:
    """How much to run."""

    tasks: dict[str, Task]
    seeds: int
    trials: int
    """Of each sweep, from the middle of its list."""
    lines: int
    """Of the record of a run."""
    timed: int
    """Updates in each of five rounds that are timed."""


def adam(rate: float, log_z_rate: float = 0.1) -> Adam:
    return Adam(rate, backward_rate=rate, log_z_rate=log_z_rate)


def natural(damping: float) -> SampleSpace:
    return replace(SampleSpace.network(), damping=damping)


def ising(side: int) -> Assignments:
    return Assignments(torus(side), "numbered")


WIDE = Network(256, 2)
GRID = Task(
    Hypergrid,
    62_500,
    "kl",
    WIDE,
    adam(1e-3),
    proposal=UniformMixture(0.1, fade=30_000),
    backward=WIDE,
    listed=True,
    unlisted=True,
)
BITS = Task(
    BitSequences,
    50_000,
    "spearman",
    Transformer(64, 3, 8),
    adam(1e-3, 0.05),
    proposal=UniformMixture(1e-3),
)
TABLE = Task(TFBind8, 100_000, "kl", WIDE, adam(5e-4, 0.05), listed=True)
SMALL = Network(8, 1)
SCALES = {
    "smoke": Scale(
        {
            "hypergrid 8^2": replace(
                GRID, make=partial(Hypergrid, 8), updates=40, network=SMALL, backward=SMALL,
                proposal=UniformMixture(0.1, fade=20), unlisted=False,
            ),
            "bit sequences, append": replace(
                BITS, make=partial(AppendedBitSequences, 16, 4, modes=4), updates=40,
                network=SMALL, test=32,  # a Transformer takes long to compile
            ),
            "Ising 3 x 3 torus": Task(
                partial(ising, 3), 40, "path_kl", SMALL, adam(1e-2, 1e-3), batch=32
            ),
        },
        seeds=2, trials=2, lines=4, timed=5,
    ),
    "paper": Scale(
        {
            "hypergrid 20^4, easy": replace(GRID, make=partial(Hypergrid, 20, 4)),
            "hypergrid 20^4, hard": replace(
                GRID, make=partial(Hypergrid, 20, 4, floor=1e-4, plateau=1.0, peak=3.0)
            ),
            "hypergrid 20^8": replace(
                GRID, make=partial(Hypergrid, 20, 8), metric="path_kl", listed=False
            ),
            "bit sequences, fill": BITS,
            "bit sequences, append": replace(BITS, make=AppendedBitSequences),
            "TFBind8": replace(TABLE, proposal=UniformMixture(1.0, fade=50_000)),
            "QM9-small": replace(
                TABLE, make=lambda: QM9Small(os.environ[QM9]), unlisted=True
            ),
            "Ising 10 x 10 torus": Task(
                partial(ising, 10), 20_000, "path_kl", Network(256, 4), adam(1e-2, 1e-3), batch=256
            ),
        },
        seeds=3, trials=5, lines=25, timed=200,
    ),
}  # fmt: skip


@dataclass
class Benchmarks:
    """Runs by title: those that were made before, and those made now."""

    scale: Scale
    seeds: int
    work: Path
    only: Collection[str]
    runs: dict[str, dict[str, Any]]

    def trial(self, name: str, method: str, rule: AbstractRule | None, seed: int) -> None:
        """Train, unless that has been done, or it is not wanted now."""
        title = f"{name}, {method} seed={seed}"
        task, folder = self.scale.tasks[name], folder_for(self.work, title)
        if seed == SWEEP_SEED:
            task = task.shortened(SHORTER)
        updates = task.updates
        wanted = all(word in title for word in self.only) or steps_done(folder) >= updates
        if title in self.runs or not wanted:
            return
        every = max(1, updates // self.scale.lines)
        sampled = Sampled(test=min(480, task.test))
        watch = None if task.listed else (sampled, Sampled(every=updates, test=task.test))
        how = self.how(task, method, rule)
        setup = Setup(
            task.env, updates=updates, seed=seed, evaluate_every=every, watch=watch, **how
        )
        done = train(setup, out=folder, resume=True, progress=title)
        known = set(done.metrics) - ({"elbo"} if task.listed else set())  # there it is E[log R]
        metrics = {m: done.metrics[m][:, 0] for m in METRICS if m in known}
        self.runs[title] = {
            "task": name,
            "method": method,
            "seed": seed,
            "rule": describe(done.setup.rule),
            "policy": describe(done.setup.policy),
            "steps": done.steps.tolist(),
            **{m: [float(f"{x:.5g}") for x in values] for m, values in metrics.items()},
            "rejected": int(done.metrics["rejected"][-1, 0]),
            "git": Record(folder / RECORD).read()[0]["git"],
        }

    def how(self, task: Task, method: str, rule: AbstractRule | None) -> dict[str, Any]:
        """What a method sets of a run."""
        shared = {"batch": task.batch, "enumerate": task.listed}
        if method == DEFAULT:
            if not task.unlisted:
                return shared | {"rule": None}
            chosen, _ = decide(Setup(task.make(), enumerate=False))
            parts = ("rule", "policy", "source", "proposal")
            return shared | {part: getattr(chosen, part) for part in parts}
        backward = task.backward if isinstance(rule, Adam) else Uniform()
        how = {"rule": rule, "policy": task.network, "proposal": task.proposal}
        return shared | how | {"backward": backward}

    def rules(self, name: str) -> dict[str, AbstractRule | None]:
        """That of each method, of those whose sweep is done; the default has none of its own."""
        found: dict[str, AbstractRule | None] = {PEER: self.scale.tasks[name].peer, DEFAULT: None}
        for method, points in self.sweeps().items():
            if (best := self.best(name, method)) is not None:
                found[method] = points[best]
        return {method: found[method] for method in METHODS if method in found}

    def sweeps(self) -> Mapping[str, Mapping[str, AbstractRule]]:
        """The settings of each method that is tuned."""
        rates = {f"rate {rate:g}": adam(rate) for rate in middle(RATES, self.scale.trials)}
        dampings = middle(DAMPINGS, self.scale.trials)
        return {ADAM: rates, NATURAL: {f"damping {d:g}": natural(d) for d in dampings}}

    def best(self, name: str, method: str) -> str | None:
        """The setting with the best metric in the end, once all have been tried."""
        metric = self.scale.tasks[name].metric
        final = {}
        for label in self.sweeps()[method]:
            entry = self.runs.get(f"{name}, {method} ({label}) seed={SWEEP_SEED}")
            if entry is None:
                return None
            value = entry[metric][-1] if metric in entry else np.nan
            final[label] = -value if metric in HIGHER else value
        return min(final, key=lambda label: np.nan_to_num(final[label], nan=np.inf))

    def compare(self, name: str) -> None:
        """The sweeps of a task, then every method on every seed."""
        for method, points in self.sweeps().items():
            for label, rule in points.items():
                self.trial(name, f"{method} ({label})", rule, SWEEP_SEED)
        for seed in range(self.seeds):
            for method, rule in self.rules(name).items():
                self.trial(name, method, rule, seed)

    def is_complete(self, name: str) -> bool:
        """Whether every method has been judged on every seed."""
        titles = [f"{name}, {m} seed={seed}" for m in METHODS for seed in range(self.seeds)]
        return all(title in self.runs for title in titles)

    def milliseconds(self, name: str, rounds: int = 5) -> dict[str, float]:
        """The median time of an update of each method, measured in turn."""
        task, timers = self.scale.tasks[name], {}
        for method, rule in self.rules(name).items():
            how: dict[str, Any] = {"source": None, "policy": None, **self.how(task, method, rule)}
            timers[method] = Timer(task.env, design=how.pop("policy"), updates=task.updates, **how)
        times = [  # the first round compiles
            {method: timer.seconds(self.scale.timed) for method, timer in timers.items()}
            for _ in range(rounds + 1)
        ][1:]
        return {method: 1e3 * float(np.median([t[method] for t in times])) for method in timers}


def run(
    scale: str,
    seeds: int | None,
    work: Path,
    only: Sequence[str] = (),
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train what is wanted and not yet there; `only` has words of titles, such as `TFBind8`."""
    size = SCALES[scale]
    known, times = (earlier["runs"], earlier["milliseconds"]) if earlier else ({}, {})
    study = Benchmarks(size, seeds or size.seeds, work, only, dict(known))
    times = dict(times)
    names = [name for name in size.tasks if name != "QM9-small" or QM9 in os.environ]
    for name in names:
        study.compare(name)
        if name not in times and study.is_complete(name):
            times[name] = study.milliseconds(name)
    return {
        "tasks": {
            name: {
                "metric": task.metric,
                "updates": task.updates,
                "batch": task.batch,
                "network": describe(task.network),
                "left_out": name not in names
                and not any(entry["task"] == name for entry in study.runs.values()),
                "best": {method: study.best(name, method) for method in study.sweeps()},
            }
            for name, task in size.tasks.items()
        },
        "runs": study.runs,
        "milliseconds": times,
    }
