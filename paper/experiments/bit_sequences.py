r"""Bit sequences: the default natural step against tuned Adam on $2^{120}$ objects.

Not in the paper: a benchmark of the field on a space that nobody can list. Strings of 120 bits in
words of 8, $\log R(x) = -3 \min_m d(x, m) / 120$ with 60 hidden modes $m$ and the Hamming distance
$d$; batches of 16, trajectory balance, 0.1% of actions at random. Both methods share the network.
Adam has the best of four rates, on a seed of its own and a fifth of the updates, by the rank
correlation; log Z moves by Adam at 0.1 in both. The default natural step is as it comes. Times are
milliseconds an update, both methods in turn in one process, without evaluations.

The correlations are those of $\log q(x)$, from ten backward paths to each object, with $\log R(x)$
on a test set: every mode with 0 to 119 bits flipped, 7,200 strings. A mode is found when training
has drawn a string less than 30 bits from it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Timer
from natgfn.envs import AbstractEnv, AppendedBitSequences, BitSequences
from natgfn.optim import AbstractRule, Adam, SampleSpace
from natgfn.policies import Network
from natgfn.sampling import UniformMixture
from natgfn.training import RECORD, Record, Run, Setup, describe
from natgfn.training import run as train
from natgfn.watch import Sampled

from ..figures import draw_training
from ..tables import made_by, table
from .study import folder_for, steps_done

RATES = (3e-4, 1e-3, 3e-3, 1e-2)
SWEEP_SEED = 1_000
ADAM, OURS = "Adam, tuned", "Natural (sample space), default"
CURVES = ("spearman", "pearson", "discovered", "elbo", "top_log_reward")


@dataclass(frozen=True)
class Scale:
    """How much to run."""

    envs: dict[str, AbstractEnv]
    updates: int
    seeds: int
    lines: int
    """Of the record of a run."""
    test: int
    """Strings of the test set in the end."""
    timed: int = 50
    """Updates in each of five rounds that are timed."""
    network: Network = Network()


SCALES = {
    "smoke": Scale(
        {"append": AppendedBitSequences(length=16, word=4, modes=4)}, 40, 2, 4, 32, 2, Network(8, 1)
    ),
    "paper": Scale(
        {"append": AppendedBitSequences(), "fill": BitSequences()}, 50_000, 3, 25, 7_200
    ),
}


def adam(rate: float) -> Adam:
    return Adam(rate, log_z_rate=0.1)


@dataclass
class BitStudy:
    """Runs by title: those that were made before, and those made now."""

    scale: Scale
    work: Path
    only: Collection[str]
    runs: dict[str, dict[str, Any]]

    def trial(self, form: str, name: str, rule: AbstractRule, seed: int, updates: int) -> None:
        """Train, unless that has been done, or it is not wanted now."""
        title = f"{form} {name} seed={seed}"
        folder = folder_for(self.work, title)
        wanted = all(word in title for word in self.only) or steps_done(folder) >= updates
        if title in self.runs or not wanted:
            return
        setup = self.setup(form, rule, seed, updates)
        done = train(setup, out=folder, resume=True, progress=title)
        about = {"form": form, "method": name, "seed": seed, "rule": describe(rule)}
        self.runs[title] = about | _summary(done, folder)

    def setup(self, form: str, rule: AbstractRule, seed: int, updates: int) -> Setup:
        """A run that looks at a part of the test set, and in the end at all of it."""
        return Setup(
            self.scale.envs[form],
            rule,
            policy=self.scale.network,
            proposal=UniformMixture(1e-3),
            batch=16,
            updates=updates,
            seed=seed,
            enumerate=False,
            evaluate_every=updates // self.scale.lines,
            watch=(
                Sampled(num=256, test=min(480, self.scale.test)),
                Sampled(every=updates, num=256, test=self.scale.test),
            ),
        )

    def milliseconds(self, form: str, rounds: int = 5) -> dict[str, float]:
        """The median time of an update of each method, measured in turn."""
        timers = {
            name: Timer(self.scale.envs[form], rule, 16, self.scale.network)
            for name, rule in {ADAM: adam(1e-3), OURS: SampleSpace.network()}.items()
        }
        times = [  # the first round compiles
            {name: timer.seconds(self.scale.timed) for name, timer in timers.items()}
            for _ in range(rounds + 1)
        ][1:]
        return {name: 1e3 * float(np.median([found[name] for found in times])) for name in timers}

    def compare(self, form: str, seeds: int) -> None:
        """The sweep, then both methods on every seed."""
        fifth = max(self.scale.updates // 5, self.scale.lines)
        for rate in RATES:
            self.trial(form, f"Adam {rate:g}", adam(rate), SWEEP_SEED, fifth)
        best = self.best(form)
        for seed in range(seeds):
            self.trial(form, OURS, SampleSpace.network(), seed, self.scale.updates)
            if best is not None:
                self.trial(form, ADAM, adam(best), seed, self.scale.updates)

    def best(self, form: str) -> float | None:
        """The rate with the highest rank correlation in the end, once all have been tried."""
        found = {rate: self.runs.get(f"{form} Adam {rate:g} seed={SWEEP_SEED}") for rate in RATES}
        if any(entry is None for entry in found.values()):
            return None
        return max(RATES, key=lambda rate: found[rate]["spearman"][-1])  # type: ignore[index]


def _summary(done: Run, folder: Path) -> dict[str, Any]:
    """What the page needs of a run."""
    metrics = done.metrics
    return {
        "steps": done.steps.tolist(),
        **{name: [float(f"{x:.5g}") for x in metrics[name][:, 0]] for name in CURVES},
        "rejected": int(metrics["rejected"][-1, 0]),
        "git": Record(folder / RECORD).read()[0]["git"],
    }


def run(
    scale: str,
    seeds: int | None,
    work: Path,
    only: Sequence[str] = (),
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train what is wanted and not yet there; `only` has words of titles, such as `append`."""
    size = SCALES[scale]
    known = earlier["runs"] if earlier else {}
    study = BitStudy(size, work, only, dict(known))
    for form in size.envs:
        study.compare(form, seeds or size.seeds)
    return {
        "updates": size.updates,
        "runs": study.runs,
        "best": {form: study.best(form) for form in size.envs},
        "milliseconds": {
            form: study.milliseconds(form)
            for form in size.envs
            if any(entry["form"] == form for entry in study.runs.values())
        },
    }


def page(results: Mapping[str, Any]) -> str:
    """Tables of both forms, with every run of the sweep."""
    parts = [f"# Bit sequences\n\n{results['about']}\n"]
    for form, best in results["best"].items():
        runs = [entry for entry in results["runs"].values() if entry["form"] == form]
        final = [e for e in runs if e["seed"] != SWEEP_SEED]
        tried = [e for e in runs if e["seed"] == SWEEP_SEED]
        if not runs:
            continue
        rate = "not chosen yet" if best is None else f"{best:g}"
        parts.append(f"## {form}: {results['updates']:,} updates; Adam's best rate: {rate}\n")
        times = results["milliseconds"].get(form, {})
        parts.append(_table(final, times))
        parts.append("\nThe sweep, a fifth of the updates each:\n")
        parts.append(_table(tried, {}))
        parts.append(_at_equal_time(final, times))
    return "\n".join([*parts, made_by(results)])


def _table(runs: Sequence[Mapping[str, Any]], times: Mapping[str, float]) -> str:
    rows = []
    for name in dict.fromkeys(entry["method"] for entry in runs):
        mine = [entry for entry in runs if entry["method"] == name]
        cells = [_spread([entry[curve][-1] for entry in mine]) for curve in CURVES]
        rate = f"{times[name]:.3g}" if name in times else ""
        rows.append([name, str(len(mine)), *cells, rate])
    return table(["method", "seeds", *CURVES, "ms an update"], rows)


def _at_equal_time(runs: Sequence[Mapping[str, Any]], times: Mapping[str, float]) -> str:
    """Every method when the faster one is done, by the last line of its record before that."""
    if not runs or not times:
        return ""
    limit = min(times.values()) * max(entry["steps"][-1] for entry in runs)
    rows = []
    for name in dict.fromkeys(entry["method"] for entry in runs):
        mine = [entry for entry in runs if entry["method"] == name]
        at = int(np.searchsorted(np.array(mine[0]["steps"]) * times[name], 1.001 * limit)) - 1
        curves = ("spearman", "pearson", "discovered")
        cells = [_spread([entry[curve][at] for entry in mine]) for curve in curves]
        rows.append([name, str(mine[0]["steps"][at]), *cells])
    head = f"\nIn the time of the faster method, {1e-3 * limit:.0f} s at these times:\n\n"
    return head + table(["method", "updates", "spearman", "pearson", "discovered"], rows) + "\n"


def _spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.4g} ± {np.std(values):.2g}"


def figures(results: Mapping[str, Any], out: Path, stem: str) -> list[Path]:
    """Rank correlation and modes found over updates."""
    made = []
    for curve in ("spearman", "discovered"):
        panels = {}
        for form in results["best"]:
            lines = {}
            for name in (ADAM, OURS):
                mine = [
                    entry
                    for entry in results["runs"].values()
                    if (entry["form"], entry["method"]) == (form, name)
                ]
                if mine:
                    values = np.array([entry[curve] for entry in mine]).T
                    lines[name.removesuffix(", default")] = (mine[0]["steps"], values)
            if lines:
                panels[form] = lines
        if panels:
            path = out / f"{stem}.{curve}.png"
            made.append(draw_training(panels, curve, path, columns=len(panels), log=False))
    return made
