"""What the tabular experiments have in common: trials, sweeps, and the rows they become.

Every experiment is run with the paper's rates for the record, with each method at the best
rate of a small sweep on other seeds for the comparison, and with the rules that have no rate.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from natgfn.metrics import METRICS
from natgfn.optim import AbstractRule, Adam, Euclidean
from natgfn.policies import AbstractDesign
from natgfn.statespace import StateSpace
from natgfn.training import RECORD, Record, Run, describe, train

from ..tables import DEFAULT, TUNED, UNTUNED

SWEEP_SEED = 1_000
"""Sweeps use seeds from here on, so that no method is tuned on the seeds it is judged on."""

PAPER = "paper's rates"


@dataclass(frozen=True)
class Scale:
    """How much to run."""

    updates: int
    seeds: int
    sweep_seeds: int
    sweep_points: int
    """How many points of each sweep, around the middle of the list."""


class Rates(NamedTuple):
    r"""The rates that are chosen for a method."""

    forward: float
    log_z: float = 0.01

    def __str__(self) -> str:
        return f"{self.forward:g}, log Z {self.log_z:g}"


@dataclass(frozen=True)
class Method:
    """A method with rates: what makes its rule, the paper's rates, and those to try."""

    name: str
    rule: Callable[[Rates], AbstractRule]
    paper: Rates | None
    """None if the paper does not have the method."""
    sweep: tuple[Rates, ...]
    extra: Callable[[Rates], dict[str, Any]] = lambda _: {}
    """What else it sets of `natgfn.train`: an objective, or a source."""


def euclidean(rates: Rates) -> Euclidean:
    return Euclidean(rates.forward, log_z_rate=rates.log_z)


def adam(rates: Sequence[float], log_z: Sequence[float]) -> Method:
    r"""Adam at each of these rates with each of these for $\log Z$, which is Adam's too."""
    points = tuple(Rates(rate, z) for rate in rates for z in log_z)
    return Method("Adam", lambda r: Adam(r.forward, log_z_rate=r.log_z), None, points)


@dataclass
class Study:
    """One environment under several methods, and what came out."""

    setting: dict[str, Any]
    space: StateSpace
    backward: AbstractDesign
    scale: Scale
    work: Path
    """Where runs are kept, so that an interrupted study goes on where it stopped."""
    batch: int = 128
    bars: bool = True
    """Whether to show the progress of each run; of studies side by side only one can."""
    earlier: Mapping[str, Any] | None = None
    """Results of this experiment whose rows, curves and sweeps are taken over, not made again."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    sweeps: list[dict[str, Any]] = field(default_factory=list)

    @property
    def configuration(self) -> dict[str, Any]:
        """What all trials share; each row says what is its own."""
        return {
            "env": describe(self.space.env),
            "backward": type(self.backward).__name__,
            "batch": self.batch,
            "scale": asdict(self.scale),
            "sweep_seed": SWEEP_SEED,
        }

    def compare(
        self, methods: Iterable[Method], untuned: Mapping[str, AbstractRule | None]
    ) -> None:
        """Run everything: the paper's rates, tuned rates, and the rules without a rate."""
        for method in methods:
            if method.paper is not None:
                self.at_rates(method, PAPER, method.paper)
            self.at_rates(method, TUNED, self.sweep(method))
        for name, rule in untuned.items():
            self.trial(name, UNTUNED, rule, None)

    def at_rates(self, method: Method, kind: str, rates: Rates, times: int = 1) -> Run | None:
        """A trial of a method at given rates, on so many times the study's seeds."""
        rule, extra = method.rule(rates), method.extra(rates)
        return self.trial(method.name, kind, rule, rates, times, **extra)

    def sweep(self, method: Method) -> Rates:
        """The rates with the lowest final divergence, on seeds of their own."""
        points = middle(method.sweep, self.scale.sweep_points)
        for made in (self.earlier or {}).get("sweeps", ()):
            same = (made["setting"], made["method"]) == (self.setting, method.name)
            if same and list(made["kl"]) == [str(rates) for rates in points]:
                self.sweeps.append(made)
                return next(rates for rates in points if str(rates) == made["best"])
        final = {}
        for rates in points:
            title = f"{self.title} {method.name}, {rates}"
            seeds, extra = self.scale.sweep_seeds, method.extra(rates)
            run = self.run(title, method.rule(rates), seeds, SWEEP_SEED, **extra)
            final[rates] = float(np.mean(run.metrics["kl"][-1]))
        best = min(final, key=lambda rates: final[rates] if np.isfinite(final[rates]) else np.inf)
        self.sweeps.append(
            {
                "setting": self.setting,
                "method": method.name,
                "kl": {str(rates): value for rates, value in final.items()},
                "best": str(best),
            }
        )
        return best

    def trial(
        self,
        name: str,
        kind: str,
        rule: AbstractRule | None,
        rates: Rates | None,
        times: int = 1,
        **extra: Any,
    ) -> Run | None:
        """Run one method on so many times the study's seeds and add its row and curves.

        Without a rule, `train` chooses it, and the source of trajectories with it.

        Returns:
            The run, or None if the row was taken over from earlier results.
        """
        title, seeds = f"{self.title} {name}, {kind}", times * self.scale.seeds
        setting = self.row_setting(kind, rates)
        if self.take(name, setting, seeds):
            return None
        run = self.run(title, rule, seeds, 0, **extra)
        metrics = {metric: run.metrics[metric] for metric in METRICS}
        law, chosen = run.laws.mean(axis=0), run.setup
        self.add(name, setting, run.steps, metrics, law, describe(chosen.rule))
        if rule is None:
            extra["source"] = chosen.source
        self.rows[-1] |= {part: describe(value) for part, value in extra.items()}
        # A run may be older than the page it stands on: it says itself what made it.
        self.rows[-1]["git"] = Record(self.folder(title, 0) / RECORD).read()[0]["git"]
        return run

    def take(self, name: str, setting: dict[str, Any], seeds: int) -> bool:
        """Take over an earlier row and its curve, if there is one of so many seeds."""
        made = self.earlier or {"rows": (), "curves": ()}
        for row, curve in zip(made["rows"], made["curves"], strict=True):
            if (row["method"], row["setting"], row["seeds"]) == (name, setting, seeds):
                self.rows.append(row)
                self.curves.append(curve)
                return True
        return False

    def row_setting(self, kind: str, rates: Rates | None) -> dict[str, Any]:
        return {**self.setting, "rates": kind, "rate": None if rates is None else str(rates)}

    def add(
        self,
        name: str,
        setting: dict[str, Any],
        steps: np.ndarray,
        metrics: dict[str, np.ndarray],
        law: np.ndarray,
        rule: Any,
    ) -> None:
        """A row of final metrics, and the curves behind it, from arrays `[evaluations, seeds]`."""
        self.rows.append(
            {
                "setting": setting,
                "method": name,
                "rule": rule,
                "seeds": int(metrics["kl"].shape[1]),
                "metrics": {metric: _summary(values[-1]) for metric, values in metrics.items()},
            }
        )
        curves = {metric: _rounded(metrics[metric]) for metric in ("kl", "tv", "loss")}
        entry = {"setting": setting, "method": name, "steps": steps.tolist(), **curves}
        # A law over many objects is no picture, and would make the file large.
        self.curves.append(entry | ({"law": _rounded(law)} if law.size <= 4096 else {}))

    def run(
        self, title: str, rule: AbstractRule | None, seeds: int, seed: int, **extra: Any
    ) -> Run:
        return train(
            self.space,
            rule,
            backward=self.backward,
            batch=self.batch,
            updates=self.scale.updates,
            seeds=seeds,
            seed=seed,
            out=self.folder(title, seed),
            resume=True,
            progress=title if self.bars else False,
            **extra,
        )

    def folder(self, title: str, seed: int) -> Path:
        return folder_for(self.work, f"{title} {seed}")

    @property
    def title(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.setting.items())

    def final(self, method: str, rates: str, metric: str = "kl") -> float:
        """The mean of a final metric."""
        return self.row(method, rates)["metrics"][metric]["mean"]

    def row(self, method: str, rates: str) -> dict[str, Any]:
        return _of(self.rows, method, rates)

    def curve(self, method: str, rates: str) -> dict[str, Any]:
        return _of(self.curves, method, rates)

    def progress(self, method: str, rates: str, metric: str = "kl") -> float:
        """The mean logarithm of a metric over training: lower is faster."""
        values = self.curve(method, rates)[metric]
        return float(np.mean(np.log(np.maximum(values, 1e-12))))


def _of(entries: Iterable[dict[str, Any]], method: str, rates: str) -> dict[str, Any]:
    for entry in entries:
        if entry["method"] == method and entry["setting"]["rates"] == rates:
            return entry
    raise KeyError((method, rates))


def folder_for(work: Path, title: str) -> Path:
    """Where a run of this title is kept."""
    return work / "".join(c if c.isalnum() else "-" for c in title)


def steps_done(folder: Path) -> int:
    """How far a run has come; one that was stopped at once has only a header."""
    path = folder / RECORD
    lines = Record(path).read()[1] if path.exists() else []
    return lines[-1]["step"] if lines else -1


def faster(study: Study, method: str, other: str, rates: str, metric: str) -> dict[str, Any]:
    """Whether one method lowers a metric faster than another, and ends below it."""
    progress = [study.progress(name, rates, metric) for name in (method, other)]
    final = [study.final(name, rates, metric) for name in (method, other)]
    return {
        "setting": study.setting,
        "claim": f"{method} lowers {metric} faster than {other}, {rates}",
        "holds": progress[0] < progress[1] and final[0] < final[1],
        "evidence": f"final {final[0]:.2e} against {final[1]:.2e}, "
        f"mean log {progress[0]:.2f} against {progress[1]:.2f}",
    }


def default_below(
    study: Study, other: str, metric: str = "kl", name: str = DEFAULT
) -> dict[str, Any]:
    """Whether the default, by its name, ends below another method at its tuned rates."""
    ours, theirs = study.final(name, UNTUNED, metric), study.final(other, TUNED, metric)
    return {
        "setting": study.setting,
        "claim": f"{name}, untuned, ends below tuned {other} in {metric.upper()}",
        "holds": ours < theirs,
        "evidence": f"{ours:.2e} against {theirs:.2e}",
    }


def middle(points: Sequence[Any], count: int) -> Sequence[Any]:
    """So many points of a sweep, around the middle of the list."""
    skip = max(0, (len(points) - count + 1) // 2)
    return points[skip : skip + count]


def _summary(values: np.ndarray) -> dict[str, float | None]:
    """Mean and deviation over seeds; the paper prints no number for the tabular experiments."""
    return {"mean": float(np.mean(values)), "std": float(np.std(values)), "paper": None}


def _rounded(values: np.ndarray) -> Any:
    return np.vectorize(lambda x: float(f"{x:.5g}"))(values).tolist()
