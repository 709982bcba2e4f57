"""Every objective under the same rules: the preconditioner is independent of trajectory balance.

Hypergrid, batches of 128, a uniform backward policy. Objectives with state flows learn those by
Adam where the rule is natural, and as the policy otherwise. The loss in the table is the expected
one of trajectory balance, whatever was minimised; `LogVariance` does not train log Z, so its loss
is only an offset.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from natgfn.envs import Hypergrid
from natgfn.objectives import (
    AbstractObjective,
    DetailedBalance,
    FlowMatching,
    LogVariance,
    SubTrajectoryBalance,
    TrajectoryBalance,
)
from natgfn.occupancy import Sampled
from natgfn.optim import Natural, SampleSpace
from natgfn.policies import Uniform
from natgfn.statespace import enumerate_states

from ..figures import Panel, draw_curves
from ..tables import DEFAULT, LISTED, TUNED, UNTUNED
from .study import Method, Rates, Scale, Study, adam, default_below, euclidean, faster

OBJECTIVES: dict[str, AbstractObjective] = {
    "trajectory balance": TrajectoryBalance(),
    "log-partition variance": LogVariance(),
    "detailed balance": DetailedBalance(),
    "sub-trajectory balance": SubTrajectoryBalance(),
    "flow matching": FlowMatching(),
    "forward-looking DB": DetailedBalance(forward_looking=True),
    "forward-looking SubTB": SubTrajectoryBalance(forward_looking=True),
    "forward-looking FM": FlowMatching(forward_looking=True),
}

SCALES = {
    "smoke": (4, 3, Scale(updates=60, seeds=2, sweep_seeds=1, sweep_points=1)),
    "paper": (16, len(OBJECTIVES), Scale(updates=3_000, seeds=3, sweep_seeds=1, sweep_points=3)),
}
"""The side, how many objectives, and how much to run."""

NATURAL = "Natural (sample)"
METHODS = (
    Method(
        "Euclidean",
        euclidean,
        None,
        tuple(Rates(rate, 0.5) for rate in (0.3, 1.0, 3.0)),
    ),
    adam((0.01, 0.03, 0.1), log_z=(0.1,)),
    Method(
        NATURAL,
        lambda r: Natural(Sampled(), rate=r.forward, log_z_rate=r.log_z, flow_rate=0.03),
        None,
        tuple(Rates(rate, 0.5) for rate in (0.003, 0.01, 0.03)),
    ),
)


def run(
    scale: str, seeds: int | None, work: Path, earlier: Mapping[str, Any] | None = None
) -> list[Study]:
    """Two objectives at a time: a compiled update of a table keeps one core busy."""
    side, count, size = SCALES[scale]
    size = replace(size, seeds=seeds or size.seeds)
    space = enumerate_states(Hypergrid(side=side))

    def of(name: str) -> Study:
        setting, objective = {"objective": name}, OBJECTIVES[name]
        study = Study(setting, space, Uniform(), size, work, bars=False, earlier=earlier)
        for method in METHODS:
            minimising = replace(method, extra=lambda _: {"objective": objective})
            study.at_rates(minimising, TUNED, study.sweep(minimising))
        study.trial(DEFAULT, UNTUNED, SampleSpace(), None, objective=objective)
        if name == "trajectory balance":  # which the default minimises
            study.trial(LISTED, UNTUNED, None, None)
        for row in study.rows:
            kl = row["metrics"]["kl"]["mean"]
            Console(stderr=True).print(f"{name}, {row['method']}: KL {kl:.2e}")
        return study

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(of, list(OBJECTIVES)[:count]))


def claims(studies: list[Study]) -> list[dict[str, Any]]:
    found = []
    for study in studies:
        found += [faster(study, NATURAL, name, TUNED, "kl") for name in ("Euclidean", "Adam")]
        found.append(default_below(study, "Adam"))
    found.append(default_below(studies[0], "Adam", name=LISTED))
    return found


def figures(results: dict[str, Any], out: Path, stem: str) -> list[Path]:
    """The divergence over updates under every objective."""
    names = dict.fromkeys(curve["setting"]["objective"] for curve in results["curves"])
    panels = [Panel(name, "kl", {"objective": name}) for name in names]
    return [
        draw_curves(results["curves"], panels, out / f"{stem}.png", columns=min(4, len(panels)))
    ]
