r"""From a table to a posterior over graphs: how far answers are from others that owe them nothing.

Not in the paper. Every table is a CSV file, every answer that of a command as a user gives it, and
so is every reference: `natgfn dag exact` for up to 16 variables, beyond it `natgfn dag chains`, for
longer, with seeds that no answer has seen. Chains and samplers beyond 18 variables share the choice
of candidate parents; what that leaves out is in the verdict, not in the differences.

Simulated tables follow a linear model along a random graph with about as many edges as variables,
effects between 0.5 and 2 in size (strong: between 1.5 and 3) and noise of deviation 1; that of 37
variables follows the graph of the ALARM network (Beinlich et al., 1989). Differences are those of
probabilities of edges. For comparison, Gadget, a partition sampler, on one core of such a machine:
12 variables, 60 s, 0.033 at worst and 0.008 on average from exact; 20 variables, runs of 240 and
480 s differ by 0.040 and 0.0034; 37 variables, two runs of 480 s by 0.11 and 0.003.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from natgfn.errors import NatgfnError
from natgfn.figures import save
from natgfn.training import git_state

from ..tables import made_by, table
from .dag_synthetic import draw_data, observe
from .study import folder_for

ROW = "row.json"
"""What is kept of a command that has ended, in its folder."""

EXACT = 16
"""The most variables for which the reference is exact."""

ALARM = (
    "HIST|LVF CVP|LVV PCWP|LVV HYP LVV|HYP:LVF LVF STKV|HYP:LVF ERLO HRBP|ERLO:HR HREK|ERCA:HR "
    "ERCA HRSA|ERCA:HR ANES APL TPR|APL ECO2|ACO2:VLNG KINK MINV|INT:VLNG FIO2 PVS|FIO2:VALV "
    "SAO2|PVS:SHNT PAP|PMB PMB SHNT|INT:PMB INT PRSS|INT:KINK:VTUB DISC MVS VMCH|MVS "
    "VTUB|DISC:VMCH VLNG|INT:KINK:VTUB VALV|INT:VLNG ACO2|VALV CCHL|ACO2:ANES:SAO2:TPR HR|CCHL "
    "CO|HR:STKV BP|CO:TPR"
)
"""Each variable with its parents."""


@dataclass(frozen=True)
class Case:
    """A table, the answers to it, and how good they have to be.

    Attributes:
        make: the columns; None for the table that `natgfn dag sachs --log` reads.
        answers: the words of each command after `natgfn dag`, but for the table and folders.
        reference: minutes of the chains that answers are compared with; None if exact.
        limits: of the answer `fit`: the largest of each number, but for the share, the smallest.
    """

    make: Callable[[], pd.DataFrame] | None
    answers: Mapping[str, str]
    reference: float | None = None
    limits: Mapping[str, float] = field(default_factory=dict)


def simulated(size: int, seed: int, rows: int = 200, strong: bool = False) -> pd.DataFrame:
    """A table of a random graph."""
    sizes = (1.5, 3.0) if strong else (0.5, 2.0)
    _, values = draw_data(size, seed, rows, sizes)
    return pd.DataFrame(values, columns=[f"X{i}" for i in range(size)])


def alarm(seed: int, rows: int = 200) -> pd.DataFrame:
    """A table of the ALARM network's graph."""
    graph, names = alarm_graph()
    rng = np.random.default_rng(seed)
    return pd.DataFrame(observe(graph, rng, rows), columns=list(names))


def alarm_graph() -> tuple[Int[np.ndarray, "37 37"], tuple[str, ...]]:
    """Row is source, and the names of its variables."""
    parents = {name: some.split(":") if some else [] for name, _, some in
               (word.partition("|") for word in ALARM.split())}  # fmt: skip
    names = tuple(parents)
    graph = np.zeros((len(names), len(names)), np.int64)
    for child, some in parents.items():
        graph[[names.index(parent) for parent in some], names.index(child)] = 1
    return graph, names


def _narrow(make: Callable[[], pd.DataFrame] | None, minutes: float = 4.0, **others: str) -> Case:
    return Case(make, {"fit": f"fit --minutes {minutes:g}", **others}, limits={"worst": 0.02})


_OF_20 = {"gap": 1.0, "share": 0.05, "worst": 0.03}
_AS_GADGET = {
    "chains, 4": "chains --minutes 4 --seed 2",
    "chains, 8": "chains --minutes 8 --seed 3",
}
SCALES: dict[str, dict[str, Case]] = {
    "smoke": {
        "d=4": Case(
            partial(simulated, 4, 0),
            {"fit": "fit --updates 20", "chains": "chains --minutes 0.02"},
        ),
    },
    "paper": {
        "Sachs": _narrow(None),
        "d=8": _narrow(partial(simulated, 8, 108)),
        "d=10, strong": _narrow(partial(simulated, 10, 110, strong=True)),
        "d=12": _narrow(partial(simulated, 12, 112), chains="chains --minutes 1"),
        "d=14, strong": _narrow(partial(simulated, 14, 114, strong=True), minutes=8.0),
        "d=16": _narrow(partial(simulated, 16, 116), minutes=8.0),
        **{
            f"d=20, rows={rows}, seed={seed}": Case(
                partial(simulated, 20, seed, rows),
                {"fit": "fit --minutes 10"} | (_AS_GADGET if (rows, seed) == (200, 0) else {}),
                reference=8.0,
                limits=_OF_20,
            )
            for rows in (200, 1_000)
            for seed in range(3)
        },
        "d=37": Case(
            partial(alarm, 0),
            {"fit": "fit --minutes 28"},
            reference=20.0,
            limits={"gap": 5.0, "worst": 0.08, "mean": 0.005},
        ),
        "d=64": Case(partial(simulated, 64, 0), {"fit": "fit --minutes 10"}, reference=10.0),
    },
}
NUMBERS = ("elbo", "eubo", "gap", "share", "worst", "mean")


@dataclass
class Graphs:
    """Rows by title: those of earlier commands, and those made now."""

    work: Path
    only: Sequence[str]
    rows: dict[str, dict[str, Any]]

    def case(self, name: str, case: Case) -> None:
        """Its reference, then its answers, each compared with it."""
        data, options = self.table(name, case), ("--log",) if case.make is None else ()
        reference = "exact" if case.reference is None else _reference(case.reference)
        truth = self.command(f"{name}, reference", data, (*reference.split(), *options))
        for answer, words in case.answers.items():
            title = f"{name}, {answer}"
            found = self.command(title, data, (*words.split(), *options))
            if title not in self.rows and truth is not None and found is not None:
                self.rows[title] = {"case": name, "answer": answer} | _row(found, truth)

    def table(self, name: str, case: Case) -> str:
        """The file of a case, written anew."""
        if case.make is None:
            return "sachs"
        path = folder_for(self.work, name).with_suffix(".csv")
        path.parent.mkdir(parents=True, exist_ok=True)
        case.make().to_csv(path, index=False)
        return str(path)

    def command(self, title: str, data: str, words: Sequence[str]) -> Path | None:
        """The folder of a command that has ended; it is given if it is wanted and has not.

        One that was interrupted is given again from the start: its minutes are what is judged.
        """
        folder = folder_for(self.work, title)
        if (folder / ROW).exists():
            return folder
        if not all(word in title for word in self.only):
            return None
        shown = " ".join(["natgfn dag", words[0], Path(data).name, *words[1:]])
        print(f"{title}: {shown}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        started = time.perf_counter()
        call = [sys.executable, "-m", "natgfn.cli", "dag", words[0], data, *words[1:], "--out"]
        ended = subprocess.run([*call, str(folder)], stdout=subprocess.DEVNULL, check=False)
        if ended.returncode:
            raise NatgfnError(f"`{shown}` ended with exit code {ended.returncode}")
        row = {
            "command": shown,
            "seconds": round(time.perf_counter() - started, 1),
            "cores": len(os.sched_getaffinity(0)),
            "git": git_state(),
        }
        (folder / ROW).write_text(json.dumps(row))
        return folder


def _reference(minutes: float) -> str:
    return f"chains --minutes {minutes:g} --seed 1000"


def _row(found: Path, truth: Path) -> dict[str, Any]:
    """What the page needs of an answer beside its reference."""
    summary, row, reference = (
        json.loads(path.read_text()) for path in (found / "summary.json", found / ROW, truth / ROW)
    )
    trust, ours, theirs = summary.get("trust", {}), _edges(found), _edges(truth)
    sizes = np.abs(ours - theirs)[~np.eye(len(ours), dtype=bool)]
    word, why = summary["verdict"]["word"], "; ".join(summary["verdict"]["why"])
    about = json.loads((truth / "summary.json").read_text())
    return row | {
        "variables": len(ours),
        "rows": summary["rows"],
        "reference": reference["command"],
        "reference_verdict": about["verdict"]["word"],
        "elbo": trust.get("elbo"),
        "eubo": trust.get("eubo"),
        "gap": trust.get("eubo_less_elbo"),
        "share": summary.get("quality", {}).get("effective_sample_share"),
        "worst": float(sizes.max()),
        "mean": float(sizes.mean()),
        "verdict": f"{word}: {why}",
    }


def _edges(folder: Path) -> Float[np.ndarray, "d d"]:
    return pd.read_csv(folder / "edge_marginals.csv", index_col=0).to_numpy()


def run(
    scale: str,
    seeds: int | None,
    work: Path,
    only: Sequence[str] = (),
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Give the commands that are wanted and have not ended; `only` has words, such as `d=20`."""
    del seeds  # each table has its own
    study = Graphs(work, only, dict(earlier["rows"]) if earlier else {})
    for name, case in SCALES[scale].items():
        study.case(name, case)
    limits = {f"{name}, fit": dict(case.limits) for name, case in SCALES[scale].items()}
    return {"rows": study.rows, "limits": limits}


def misses(row: Mapping[str, Any], limits: Mapping[str, float]) -> list[str]:
    """The numbers of an answer that are beyond their limits, or are not known."""
    return [
        name
        for name, limit in limits.items()
        if row[name] is None or not (row[name] >= limit if name == "share" else row[name] <= limit)
    ]


def page(results: Mapping[str, Any]) -> str:
    """One table, then the verdicts."""
    heads = ["table", "d", "rows", "answer", "seconds", "cores", "ELBO", "EUBO", "EUBO - ELBO",
             "effective share", "worst edge", "mean edge", "beyond limits"]  # fmt: skip
    body, verdicts = [], []
    for title, row in results["rows"].items():
        limits = results["limits"].get(title, {})
        cells = ["" if row[name] is None else _number(name, row[name]) for name in NUMBERS]
        beyond = ", ".join(
            f"{name} ({'at least' if name == 'share' else 'at most'} {limits[name]:g})"
            for name in misses(row, limits)
        )
        some = [row["case"], str(row["variables"]), str(row["rows"]), row["answer"]]
        seconds = [f"{row['seconds']:.0f}", str(row["cores"])]
        body.append([*some, *seconds, *cells, beyond or ("none" if limits else "no limits")])
        against = f"`{row['reference']}` ({row['reference_verdict']})"
        verdicts.append([row["case"], f"`{row['command']}`", against, row["verdict"]])
    sections = [
        "# Posteriors over graphs",
        results["about"],
        table(heads, body),
        "## Commands and verdicts",
        "The verdict is that of the command itself, which does not know the reference.",
        table(["table", "command", "compared with", "its verdict"], verdicts),
        made_by(results),
    ]
    return "\n\n".join(sections) + "\n"


def _number(name: str, value: float) -> str:
    if name == "share":
        return f"{value:.1%}"
    return f"{value:.2f}" if name in ("elbo", "eubo", "gap") else f"{value:.2g}"


def figures(results: Mapping[str, Any], out: Path, stem: str) -> list[Path]:
    """The worst and the mean difference of an edge, answer by answer."""
    rows = results["rows"]
    if not rows:
        return []
    figure, axes = plt.subplots(figsize=(7, 1 + 0.3 * len(rows)), layout="constrained")
    places = np.arange(len(rows))
    for name, marker in (("worst", "o"), ("mean", "|")):
        axes.plot([max(row[name], 1e-5) for row in rows.values()], places, marker, label=name)
    limits = [results["limits"].get(title, {}).get("worst", np.nan) for title in rows]
    axes.plot(limits, places, color="k", marker=4, linestyle="none", label="limit of the worst")
    axes.set(xscale="log", xlabel="difference from the reference in the probability of an edge")
    axes.set_yticks(places, list(rows), fontsize="small")
    axes.invert_yaxis()
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return [save(figure, out / f"{stem}.png")]
