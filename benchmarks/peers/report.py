"""What the answers of workers say: whether all did the same work, and how many times faster."""

import statistics
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from ..measure import Measurement
from ..pages import limits_table, table
from .rounds import ADAM, CONTENDERS, NATURAL
from .workers.tasks import Task

_RATIOS = {
    # gfnx fresh, long; torchgfn fresh, long
    Task("grid", 2, 8, 128): ((15, 15), (20, 30)),
    Task("grid", 2, 8, 16): ((3, 3), (12, 15)),
    Task("grid", 2, 64, 128): ((10, 6), (2, 8)),
    Task("grid", 2, 64, 16): ((4, 2), (2, 8)),
    Task("grid", 4, 16, 128): ((5, 1.6), (2, 2)),
    Task("grid", 4, 16, 16): ((3, 1.5), (5, 8)),
    Task("dag", 5, 0, 128): ((2,),),
}
FASTER: dict[tuple[Task, str], dict[str, float]] = {
    (task, regime): {
        peer: ratios[number] for peer, ratios in zip(("gfnx", "torchgfn"), both, strict=False)
    }
    for task, both in _RATIOS.items()
    for number, regime in enumerate(task.lengths)
}
"""How many times our time a peer's has to be at least, Adam against Adam."""
LENGTH, SIZE = 0.1, 0.05
"""How far mean lengths and numbers of parameters may be from what they should be."""

Answers = dict[str, dict[str, Any]]
"""What a worker answered, by name, or its `error`."""


def median(answer: dict[str, Any]) -> float:
    """Milliseconds an update; NaN for a worker that failed."""
    return float("nan") if "error" in answer else 1e3 * statistics.median(answer["seconds"])


def differences(task: Task, regime: str, answers: Answers) -> list[str]:
    """Where a worker did other work than it should have, one line each; empty if none did."""
    wanted, found = task.lengths[regime], []
    done = {name: answer for name, answer in answers.items() if "error" not in answer}
    size = next(iter(done.values()))["parameters"] if done else 0
    for name, answer in done.items():
        for length in answer["lengths"]:
            if abs(length / wanted - 1) > LENGTH:
                found.append(f"{name} has mean length {length:.1f}, not {wanted:.1f}")
        if abs(answer["parameters"] / size - 1) > SIZE:
            found.append(f"{name} has {answer['parameters']:,} parameters, not {size:,}")
        if answer["batch"] != task.batch:
            found.append(f"{name} draws {answer['batch']} trajectories, not {task.batch}")
    return found


def measurements(task: Task, regime: str, answers: Answers) -> list[Measurement]:
    """Every ratio that has a limit; NaN, and so missed, where one of the two failed."""
    where, found = f"{task.name}, {regime}", []
    for peer, least in FASTER[task, regime].items():
        ratio = median(answers[peer]) / median(answers[ADAM])
        found.append(Measurement(f"{where}: {peer} / natgfn", ratio, least, "x", at_least=True))
    ratio = median(answers[NATURAL]) / median(answers["gfnx"])
    found.append(Measurement(f"{where}: natgfn natural / gfnx", ratio, 1.0, "x"))
    return found


def summary(task: Task, regime: str, answers: Answers) -> dict[str, Any]:
    """A regime of a task as JSON holds it: times in milliseconds, ratios to natgfn's Adam."""
    ours, rows = median(answers[ADAM]), {}
    for name, answer in answers.items():
        if "error" in answer:
            rows[name] = answer
            continue
        low, _, high = statistics.quantiles(answer["seconds"], n=4)
        rows[name] = {
            "ms": median(answer),
            "quartiles_ms": [1e3 * low, 1e3 * high],
            "ratio": median(answer) / ours,
            "first_call_s": answer["first"],
            "parameters": answer["parameters"],
            "batch": answer["batch"],
            "lengths": answer["lengths"],
        }
    where = {"task": task.name, "regime": regime, "length": task.lengths[regime]}
    return {**where, "differences": differences(task, regime, answers), "answers": rows}


def same_work(entry: dict[str, Any]) -> str:
    """One line that says whether all did the same work."""
    names = [name for name, answer in entry["answers"].items() if "error" not in answer]
    if entry["differences"]:
        return "NOT the same work: " + "; ".join(entry["differences"])
    sizes = {entry["answers"][name]["parameters"] for name in names}
    size = " to ".join(f"{size:,}" for size in sorted({min(sizes), max(sizes)})) if sizes else "no"
    return f"same work: mean length {entry['length']:g}, {size} parameters, {len(names)} measured"


def page(results: dict[str, Any]) -> str:
    """The page, below its head."""
    heads = ["task", "regime", *CONTENDERS]
    rows = [[e["task"], e["regime"], *(_cell(e, n) for n in CONTENDERS)] for e in results["tasks"]]
    first = [
        [e["task"], *(_first(e["answers"].get(n)) for n in CONTENDERS)]
        for e in results["tasks"]
        if e["regime"] == "fresh"
    ]
    lines = [f"- {e['task']}, {e['regime']}: {same_work(e)}" for e in results["tasks"]]
    peers = [
        [name, found.get("error") or ", ".join(f"{k} {v}" for k, v in found["versions"].items())]
        for name, found in results["contenders"].items()
    ]
    return "\n\n".join(
        [
            "Trajectory balance, uniform backward policy, two hidden layers of 256, one-hot input, "
            "float32, Adam; rates next to zero, and the logit of stopping shifted until "
            "trajectories have the same mean length in every library. Fresh: that of the uniform "
            "policy; long: that of the target. Libraries take turns; nothing is evaluated. Graphs "
            "are as in gfnx's public configuration, of 5 variables, by the BGe score of 100 rows "
            "(of a chain), with a uniform prior and batch 128; but objective and network are those "
            "of the grids, not its modified detailed balance with a graph network.",
            "Milliseconds an update: median, quartiles, and the ratio to natgfn's Adam.",
            table(heads, rows),
            "Limits:",
            limits_table(results["limits"]),
            "Seconds of the first update, compiling included:",
            table(["task", *CONTENDERS], first),
            "Whether all did the same work:",
            "\n".join(lines),
            table(["library", "versions, or why it was not measured"], peers),
        ]
    )


def _cell(entry: dict[str, Any], name: str) -> str:
    answer = entry["answers"].get(name)
    if answer is None or "error" in answer:
        return "" if answer is None else "failed"
    low, high = answer["quartiles_ms"]
    return f"{answer['ms']:.3g} ({low:.3g} to {high:.3g}), {answer['ratio']:.2g}x"


def _first(answer: dict[str, Any] | None) -> str:
    return "" if answer is None or "error" in answer else f"{answer['first_call_s']:.1f}"


def draw(results: dict[str, Any]) -> Figure:
    """Milliseconds an update, a group of bars for each task and regime."""
    entries = results["tasks"]
    figure, axis = plt.subplots(figsize=(11, 4), layout="constrained")
    places, width = np.arange(len(entries)), 0.8 / len(CONTENDERS)
    for number, name in enumerate(CONTENDERS):
        times = [entry["answers"].get(name, {}).get("ms", np.nan) for entry in entries]
        axis.bar(places + width * (number - 2), times, width, label=name)
    labels = [f"{e['task']}\n{e['regime']}".replace(", batch", ",") for e in entries]
    axis.set_xticks(places, labels, fontsize=7)
    axis.set(yscale="log", ylabel="ms an update")
    axis.legend(fontsize="small", ncols=len(CONTENDERS))
    return figure
