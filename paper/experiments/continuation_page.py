"""Tables and figures of paired continuations, with the paper's rows and the exact posterior."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from ..figures import draw_agreement, draw_bars, draw_training
from ..printed import Measured, Printed, seed_count
from ..tables import made_by, table
from .continuation import CURVES, FISHER, METHODS, NETWORKS

EXACT = "exact posterior"
PROGRESS = {"loss": "loss AUC", "median": "median AUC", "p90": "P90 AUC"}
SAFEGUARDS = {
    "rejected": "not finite",
    "refused": "refused",
    "cg": "CG residual",
    "divergence": "statewise KL",
}
STRUCTURE = {
    "shd": "E-SHD",
    "shd_once": "E-SHD, reversal once",
    "auprc": "dir. AUPRC",
    "auroc": "dir. AUROC",
    "skeleton_auprc": "skel. AUPRC",
    "skeleton_auroc": "skel. AUROC",
    "edges": "mean edges",
}
DISTANCE = {
    "largest_error_of_a_marginal": "worst edge",
    "mean_error_of_a_marginal": "mean edge",
    "expected_edges_error": "mean edges",
    "expected_log_reward_error": "E[log R]",
    "log_z_error": "log Z, estimated",
    "learned_log_z_error": "log Z, learned",
}
TO = "updates to 0.75"


def relative(run: Mapping[str, Any], curve: str) -> Float[np.ndarray, " looks"]:
    """A curve in units of its beginning."""
    return np.array(run[curve]) / run[curve][0]


def area(run: Mapping[str, Any], curve: str) -> float:
    """The mean of a relative curve over the updates."""
    return float(np.trapezoid(relative(run, curve), run["steps"]) / run["steps"][-1])


def updates_to(run: Mapping[str, Any], level: float = 0.75) -> float:
    """When the relative loss first falls below a level, between looks too; infinity if never."""
    curve = relative(run, "loss")
    below = np.flatnonzero(curve <= level)
    if not below.size:
        return float("inf")
    after = below[0]  # not the first: there the curve is 1
    share = (curve[after - 1] - level) / (curve[after - 1] - curve[after])
    steps = run["steps"]
    return float(steps[after - 1] + share * (steps[after] - steps[after - 1]))


def page(results: Mapping[str, Any], paper: Printed) -> str:
    """All tables, with the paper's rows."""
    sections = [
        f"# {results['experiment']}, {results['scale']} scale",
        results["about"],
        f"{made_by(results)} Mean ± standard error over the seeds; the paper's rows in italics.",
    ]
    if packed := results.get("checkpoints"):
        sections.append(
            "Runs of the Transformer go on from their checkpoints, "
            + ", ".join(f"[{name}](checkpoints/{name})" for name in packed)
            + f": `natgfn reproduce {results['experiment']} --scale {results['scale']} "
            "--only Transformer`."
        )
    for network, variant, runs in _groups(results):
        cases = [case for case in results["cases"] if case["variant"] == variant]
        sections += [
            f"## {_title(network, variant)}",
            "Progress on the probe. `not finite` and `refused` count updates that were not taken, "
            "the latter because no length of them was within the bound on the divergence.",
            _progress(runs, paper),
            "Final samples, compared with the reference graph.",
            _structure(runs, cases, paper),
            "Final samples, compared with the exact posterior: differences of probabilities of "
            "edges, and of means.",
            _distance(runs),
            f"Loss AUC, {FISHER} minus another rule, paired by seed.",
            _differences(runs, paper),
        ]
    return "\n\n".join(sections) + "\n"


def _groups(
    results: Mapping[str, Any],
) -> Iterator[tuple[str, str, dict[str, list[Mapping[str, Any]]]]]:
    """The runs of each network on each variant, by method."""
    for network in NETWORKS:
        for variant in dict.fromkeys(case["variant"] for case in results["cases"]):
            runs = {
                name: [
                    run
                    for run in results["runs"]
                    if (run["network"], run["variant"], run["method"]) == (network, variant, name)
                ]
                for name in METHODS
            }
            runs = {name: sorted(of, key=lambda r: r["seed"]) for name, of in runs.items() if of}
            if runs:
                yield network, variant, runs


def _title(network: str, variant: str) -> str:
    return f"{network}, {variant}" if variant else network


def _progress(runs: Mapping[str, Sequence[Mapping[str, Any]]], paper: Printed) -> str:
    body = []
    for name, of in runs.items():
        reached = _reached([updates_to(run) for run in of])
        cells = [_mean([area(run, curve) for run in of]) for curve in PROGRESS]
        guards = [_mean([float(run[key]) for run in of if key in run]) for key in SAFEGUARDS]
        body.append([name, str(len(of)), *cells, reached, *guards])
        body += _printed(name, paper, ["", *PROGRESS.values(), TO, *SAFEGUARDS.values()])
    return table(["method", "seeds", *PROGRESS.values(), TO, *SAFEGUARDS.values()], body)


def _structure(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    cases: Sequence[Mapping[str, Any]],
    paper: Printed,
) -> str:
    body = []
    for name, of in {EXACT: cases, **runs}.items():
        body.append([name, *(_mean([x["final"][key] for x in of]) for key in STRUCTURE)])
        body += _printed(name, paper, list(STRUCTURE.values()))
    return table(["method", *STRUCTURE.values()], body)


def _distance(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    body = [
        [name, *(_mean([run["final"][key] for run in of]) for key in DISTANCE)]
        for name, of in runs.items()
    ]
    return table(["method", *DISTANCE.values()], body)


def paired(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[float]]:
    """The loss AUC of the damped Fisher minus that of every other rule, by seed."""
    found = {
        rival: [
            area(run, "loss") - area(other, "loss")
            for run in runs.get(FISHER, ())
            for other in of
            if run["seed"] == other["seed"]
        ]
        for rival, of in runs.items()
        if rival != FISHER
    }
    return {rival: pairs for rival, pairs in found.items() if pairs}


def _differences(runs: Mapping[str, Sequence[Mapping[str, Any]]], paper: Printed) -> str:
    """Paired by seed, and whether their sign is the paper's."""
    body = []
    for rival, pairs in paired(runs).items():
        printed = paper.differences.get(rival, "")
        agrees = ""
        if printed:
            agrees = "yes" if (np.mean(pairs) < 0) == printed.startswith("-") else "**no**"
        body.append([f"minus {rival}", str(len(pairs)), _mean(pairs), printed, agrees])
    return table(["difference", "seeds", "ours", "paper", "same sign"], body)


def measured(results: Mapping[str, Any], paper: Printed) -> list[Measured]:
    """Our rows for the paper's table: every network and variant, and our rules below."""
    found = []
    for network, variant, groups in _groups(results):
        for name, of in groups.items():
            values = {
                **{title: [area(run, curve) for run in of] for curve, title in PROGRESS.items()},
                TO: [updates_to(run) for run in of],
                **{title: [run["final"][key] for run in of] for key, title in STRUCTURE.items()},
            }
            cells = {c: (float(np.mean(values[c])), _reached(values[c])) for c in paper.columns}
            how = f"ours, {_title(network, variant)}, {seed_count(len(of))}"
            found.append(Measured(name, how, cells))
    return found


def paper_claims(results: Mapping[str, Any], paper: Printed) -> list[dict[str, Any]]:
    """What the paper says of the damped Fisher, of our runs."""
    found = []
    for network, variant, runs in _groups(results):
        for rival, pairs in paired(runs).items():
            if rival not in paper.differences:
                continue
            printed, ours = paper.differences[rival], float(np.mean(pairs))
            theirs, error = (float(x) for x in printed.split(" ± "))
            level = abs(theirs) < error
            if level and len(pairs) > 1:
                error = float(np.std(pairs, ddof=1) / len(pairs) ** 0.5)
            relation = "level with" if level else "below" if theirs < 0 else "above"
            found.append({
                "setting": {"network": _title(network, variant)},
                "claim": f"{FISHER} is {relation} {rival} in loss AUC (the paper: {printed})",
                "holds": abs(ours) < 2 * error if level else ours * theirs > 0,
                "evidence": f"{_mean(pairs)}, {seed_count(len(pairs))}",
            })  # fmt: skip
        refused = sum(run["refused"] + run["rejected"] for run in runs.get(FISHER, ()))
        if FISHER in runs:
            found.append({
                "setting": {"network": _title(network, variant)},
                "claim": f"{FISHER} accepts every update",
                "holds": refused == 0,
                "evidence": f"{refused:g} not taken, in {len(runs[FISHER])} runs",
            })  # fmt: skip
    return found


def _reached(values: Sequence[float]) -> str:
    """Mean and standard error, where all are finite."""
    return _mean(values) if np.all(np.isfinite(values)) else "not reached in some"


def _printed(name: str, paper: Printed, columns: Sequence[str]) -> list[list[str]]:
    """The paper's row of a method, if it has numbers for these columns."""
    cells = [paper.rows.get(name, {}).get(column, "") for column in columns]
    return [[f"*{name}*", *cells]] if any(cells) else []


def _mean(values: Sequence[float]) -> str:
    """Mean and standard error."""
    if not values:
        return ""
    text = f"{np.mean(values):.3g}"
    if len(values) == 1:
        return text
    return f"{text} ± {np.std(values, ddof=1) / len(values) ** 0.5:.2g}"


def figures(results: Mapping[str, Any], out: Path, stem: str, reference: str) -> list[Path]:
    """Progress, final diagnostics, and posteriors as graphs beside the reference.

    Probabilities of edges are means over the seeds that have the data of the first.
    """
    drawn = []
    for network, variant, runs in _groups(results):
        name = f"{stem}.{_title(network, variant).replace(', ', '.').replace(' ', '_').lower()}"
        panels = {
            title: {
                method: (of[0]["steps"], np.array([relative(run, curve) for run in of]).T)
                for method, of in runs.items()
            }
            for curve, title in zip(CURVES, ("Huber loss", "median |δ|", "P90 |δ|"), strict=True)
        }
        label, path = "relative to the checkpoint", out / f"{name}.convergence.png"
        drawn.append(draw_training(panels, label, path, columns=len(panels), log=False))
        cases = [case for case in results["cases"] if case["variant"] == variant]
        rows = {
            method: {
                title: {
                    "mean": float(np.mean([x["final"][key] for x in of])),
                    "std": float(np.std([x["final"][key] for x in of])),
                }
                for key, title in STRUCTURE.items()
                if key in ("shd", "auprc", "skeleton_auprc", "edges")
            }
            for method, of in {EXACT: cases, **runs}.items()
        }
        drawn.append(draw_bars(rows, list(rows[EXACT]), out / f"{name}.diagnostics.png"))
        first = cases[0]
        frame = partial(pd.DataFrame, index=first["names"], columns=first["names"])
        laws = {reference: frame(first["truth"]), EXACT: frame(first["marginals"])}
        same = {case["seed"] for case in cases if case["marginals"] == first["marginals"]}
        for method, of in runs.items():
            if found := [run["marginals"] for run in of if run["seed"] in same]:
                laws[method] = frame(np.mean(found, axis=0))
        drawn.append(draw_agreement(laws, reference, out / f"{name}.graphs.png"))
    return drawn
