"""The page of the field's benchmarks: tables, comparisons and curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..figures import draw_training
from ..tables import made_by, table
from .study import SWEEP_SEED

PEER, ADAM = "Adam, as the peer", "Adam, tuned"
DEFAULT, NATURAL = "Default", "Natural (sample space), tuned"
METHODS = (PEER, ADAM, DEFAULT, NATURAL)

METRICS = (
    "kl", "reverse_kl", "tv", "jsd", "path_kl", "elbo", "spearman", "pearson", "modes",
    "discovered",
)  # fmt: skip
"""Of a run, those that it has."""
HIGHER = ("spearman",)
"""Of those that tasks are judged by, the ones that are better when higher; a KL is not."""


def page(results: Mapping[str, Any]) -> str:
    """Every comparison, then the tables of each task."""
    sections = [f"# The field's benchmarks\n\n{results['about']}"]
    left_out = [name for name, task in results["tasks"].items() if task["left_out"]]
    if left_out:
        names = ", ".join(left_out)
        sections.append(f"Left out, because their table was not given: {names}.")
    found = comparisons(results)
    if found:
        counts = {v: sum(c["verdict"] == v for c in found) for v in ("won", "level", "lost")}
        total = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        head = ["task", "ours", "against", "at equal", "metric", "ours : theirs", "verdict"]
        rows = [[str(c[key]) for key in ("task", "ours", "against", "at", "metric", "evidence",
                                         "verdict")] for c in found]  # fmt: skip
        sections += [f"## Comparisons: {total}", table(head, rows)]
    for name, task in results["tasks"].items():
        sections += _task(name, task, results)
    return "\n\n".join([*sections, made_by(results)]) + "\n"


def comparisons(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """Both of ours against both of Adam's, in every task, at equal updates and at equal time."""
    found = []
    for name, task in results["tasks"].items():
        times, metric = results["milliseconds"].get(name), task["metric"]
        for ours in (DEFAULT, NATURAL):
            for theirs in (PEER, ADAM):
                pair = [_judged(results, name, method) for method in (ours, theirs)]
                if not all(pair):
                    continue
                about = {"task": name, "ours": ours, "against": theirs, "metric": metric}
                ends = {"updates": [len(runs[0]["steps"]) - 1 for runs in pair]}
                if times is not None:
                    ends["time"] = at_equal_time(
                        [runs[0]["steps"] for runs in pair], [times[ours], times[theirs]]
                    )
                for at, lines in ends.items():
                    one, other = (
                        [_at(run, metric, line) for run in runs]
                        for runs, line in zip(pair, lines, strict=True)
                    )
                    found.append(
                        about
                        | {"at": at, "evidence": f"{_spread(one)} : {_spread(other)}"}
                        | {"verdict": verdict(one, other, higher=metric in HIGHER)}
                    )
    return found


def at_equal_time(steps: Sequence[Sequence[int]], times: Sequence[float]) -> list[int]:
    """The last line of each of two records before the faster of their methods is done.

    Args:
        steps: updates made before each line.
        times: of an update, in any unit.
    """
    spent = [np.array(line) * time for line, time in zip(steps, times, strict=True)]
    limit = min(line[-1] for line in spent) * (1 + 1e-9)
    return [int(np.searchsorted(line, limit, side="right")) - 1 for line in spent]


def verdict(ours: Sequence[float], theirs: Sequence[float], *, higher: bool) -> str:
    """Whether our values are better by more than twice the standard error of the difference.

    A run that is NaN or infinite loses to one that is not.
    """
    broken = [not np.all(np.isfinite(values)) for values in (ours, theirs)]
    if any(broken):
        return "level" if all(broken) else "lost" if broken[0] else "won"
    gain = float(np.mean(theirs) - np.mean(ours))
    error = np.sqrt(sum(np.var(v, ddof=1) / len(v) for v in (ours, theirs) if len(v) > 1))
    if abs(gain) <= 2 * error:
        return "level"
    return "won" if (gain < 0) == higher else "lost"


def _task(name: str, task: Mapping[str, Any], results: Mapping[str, Any]) -> list[str]:
    """The judged runs of a task, and its sweeps."""
    runs = [run for run in results["runs"].values() if run["task"] == name]
    if not runs:
        return []
    times = results["milliseconds"].get(name, {})
    tuned = "; ".join(f"{m}: {best or 'not chosen yet'}" for m, best in task["best"].items())
    about = f"{task['updates']:,} updates of {task['batch']} trajectories. {tuned}."
    metrics = [metric for metric in METRICS if any(metric in run for run in runs)]
    sections = [f"## {name}", about]
    for head, sweep in (("seeds", False), ("sweep, a fifth of the updates: seeds", True)):
        some = [run for run in runs if (run["seed"] == SWEEP_SEED) == sweep]
        rows = []
        for method in dict.fromkeys(run["method"] for run in some):
            mine = [run for run in some if run["method"] == method]
            cells = [_spread([_at(run, metric, -1) for run in mine]) for metric in metrics]
            time = f"{times[method]:.3g}" if method in times else ""
            rejected = str(sum(run["rejected"] for run in mine))
            rows.append([method, str(len(mine)), *cells, rejected, time])
        if rows:
            sections.append(table(["method", head, *metrics, "rejected", "ms an update"], rows))
    return sections


def _judged(results: Mapping[str, Any], task: str, method: str) -> list[Mapping[str, Any]]:
    return [
        run
        for run in results["runs"].values()
        if (run["task"], run["method"]) == (task, method) and run["seed"] != SWEEP_SEED
    ]


def _at(run: Mapping[str, Any], metric: str, line: int) -> float:
    """A number of a record; NaN where it was not defined."""
    return run[metric][line] if metric in run else float("nan")


def _spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.4g} ± {np.std(values):.2g}"


def figures(results: Mapping[str, Any], out: Path, stem: str) -> list[Path]:
    """The metric of each task over updates, a figure for each metric."""
    made = []
    for metric in dict.fromkeys(task["metric"] for task in results["tasks"].values()):
        panels = {}
        for name, task in results["tasks"].items():
            lines = {}
            for method in METHODS:
                mine = _judged(results, name, method)
                if mine and task["metric"] == metric and all(metric in run for run in mine):
                    values = np.array([run[metric] for run in mine]).T
                    lines[method] = (mine[0]["steps"], values)
            if lines:
                panels[name] = lines
        if panels:
            path = out / f"{stem}.{metric}.png"
            columns = len(panels) if len(panels) % 2 else 2
            log = metric not in HIGHER
            made.append(draw_training(panels, metric, path, columns=columns, log=log))
    return made
