r"""Lazy random walk: `tab:8g_ext`, `tab:rings_ext` and their figures.

Two targets on 17 x 17 cells, 20 steps, batches of 64, a table over place and time. The paper
does not give the targets, the rates, or its P_B; the targets are those that agree best with what
it does give (29 and 36 modes, the ELBO of the target). P_B is taken both ways: normalised over
the parents that can be reached, and 1/5 for every move, which does not sum to one over the walks
into a cell. Under that one trajectory balance has another optimum than the target, in
proportion to R(x) h(x) with h(x) the total P_B of the walks into x; its row is computed, not
trained.

Each method is tuned on the normalised P_B, by one seed of its own and three rates, and keeps that
rate on the constant one; the paper's rates are those of its other tables. ACE and the
Wasserstein correction are reconstructions: no code of either is public. Adam is not in the paper;
its three rates are with 0.1 for log Z, by Adam too, where the others have 0.5.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from natgfn.certify import tabular
from natgfn.envs import AbstractTarget, Gaussians, LazyWalk, Rings
from natgfn.fisher import Fisher
from natgfn.metrics import judge
from natgfn.objectives import Transport
from natgfn.occupancy import ROUTES, AbstractOccupancy, Exact, Factorised, Sampled
from natgfn.optim import Natural, SampleSpace
from natgfn.policies import (
    AbstractDesign,
    AbstractPolicy,
    Constant,
    Tabular,
    Uniform,
    backward_table,
)
from natgfn.sources import ACE
from natgfn.statespace import StateSpace, backward_mass, enumerate_states
from natgfn.training import Run

from ..figures import Panel, draw_bars, draw_curves, draw_heat_maps
from ..printed import PRINTED, Measured, seed_count
from ..tables import (
    DEFAULT,
    TUNED,
    UNTUNED,
    cell,
    claims_and_sweeps,
    made_by,
    standing,
    table,
)
from .study import PAPER, Method, Rates, Scale, Study, adam, default_below, euclidean

SCALES = {
    "smoke": (3, 6, Scale(updates=60, seeds=2, sweep_seeds=1, sweep_points=1)),
    "paper": (8, 20, Scale(updates=15_000, seeds=5, sweep_seeds=1, sweep_points=3)),
}
"""The reach, the steps, and how much to run."""

TARGETS: dict[str, AbstractTarget] = {"8 Gaussians": Gaussians(), "Rings": Rings()}
ALTERNATIVES: dict[str, tuple[AbstractTarget, ...]] = {
    "8 Gaussians": (Gaussians(width=0.75, floor=2.8e-3), Gaussians(width=0.8, floor=1e-9)),
    "Rings": (Rings(width=0.453, floor=1e-12),),
}
"""Targets that agree as well, or nearly, with what the paper says of its own."""
BATCH = 64
DAMPING = 1e-3
JOINT, MESSAGES = "Natural (approx)", "Natural (messages)"
PAIR_SEEDS = 2
"""Times the seeds for the two whose difference is to be told from a deviation."""
OPTIMUM = "optimum of this P_B"
NORMALISED, CONSTANT = "normalised", "constant"
BACKWARD = {NORMALISED: Uniform(), CONSTANT: Constant()}


def gradient(name: str, extra: Callable[[Rates], dict[str, Any]] = lambda _: {}) -> Method:
    """Something that follows a Euclidean gradient."""
    points = tuple(Rates(rate, 0.5) for rate in (0.3, 1.0, 3.0))
    return Method(name, euclidean, Rates(0.1), points, extra)


def natural(name: str, route: AbstractOccupancy, rates: tuple[float, ...]) -> Method:
    """Algorithm 1 with one of the Fisher modes."""
    return Method(
        name,
        lambda r: Natural(route, rate=r.forward, log_z_rate=r.log_z, damping=DAMPING),
        Rates(0.1),
        tuple(Rates(rate, 0.5) for rate in rates),
    )


METHODS = (
    gradient("Euclidean"),
    adam((0.003, 0.01, 0.03), log_z=(0.1,)),  # 0.1 was worst on the seed of the sweep
    natural("Natural (sample)", Sampled(), (0.003, 0.01, 0.03)),
    natural("Natural (exact)", Exact(), (0.001, 0.003, 0.01)),
    natural(JOINT, Factorised(), (0.001, 0.003, 0.01)),
    replace(natural(MESSAGES, Factorised("direct"), (0.001, 0.003, 0.01)), paper=None),
    gradient("Wasserstein (reconstructed)", lambda _: {"objective": Transport()}),
    gradient("ACE (reconstructed)", lambda rates: {"source": ACE(rule=euclidean(rates))}),
)
NATURALS = [method.name for method in METHODS if method.name.startswith("Natural")]


def run(
    scale: str, seeds: int | None, work: Path, earlier: Mapping[str, Any] | None = None
) -> list[Study]:
    """Both targets side by side: a compiled update of a table keeps one core busy."""
    size = SCALES[scale][-1]
    size = replace(size, seeds=seeds or size.seeds)

    def of(target: str) -> list[Study]:
        return compare(target, enumerated(scale, target), size, work, earlier=earlier)

    with ThreadPoolExecutor(2) as pool:
        return [study for studies in pool.map(of, TARGETS) for study in studies]


def enumerated(scale: str, target: str) -> StateSpace:
    reach, steps, _ = SCALES[scale]
    return enumerate_states(LazyWalk(reach, steps, target=TARGETS[target]))


def compare(
    target: str,
    space: StateSpace,
    size: Scale,
    work: Path,
    methods: Sequence[Method] = METHODS,
    earlier: Mapping[str, Any] | None = None,
) -> list[Study]:
    """Every method on one target, under both backward policies."""
    studies = {
        name: Study({"target": target, "P_B": name}, space, make, size, work, BATCH, False, earlier)
        for name, make in BACKWARD.items()
    }
    for method in methods:
        best = studies[NORMALISED].sweep(method)
        for study in studies.values():
            if method.paper is not None:
                finish(study, study.at_rates(method, PAPER, method.paper))
            pair = method.name in (JOINT, MESSAGES) and study is studies[NORMALISED]
            found = study.at_rates(method, TUNED, best, times=PAIR_SEEDS if pair else 1)
            finish(study, found)
            if found is not None and method.name == "Natural (exact)":
                study.rows[-1]["routes"] = routes(space, found.flow().forward)
    for study in studies.values():
        finish(study, study.trial(DEFAULT, UNTUNED, SampleSpace(), None))
    add_optimum(studies[CONSTANT])
    return list(studies.values())


def finish(study: Study, found: Run | None) -> None:
    """Of a new run count stricter modes too, and say how it went."""
    row = study.rows[-1]
    if found is not None:
        half = [half_modes(study.space, law) for law in found.laws]
        row["metrics"]["half"] = {"mean": float(np.mean(half)), "std": float(np.std(half))}
    title, tv = f"{study.title} {row['method']}", row["metrics"]["tv"]["mean"]
    Console(stderr=True).print(f"{title}, {row['setting']['rates']}: TV {tv:.4f}")


def half_modes(space: StateSpace, law: np.ndarray) -> int:
    """Modes with half of their due probability."""
    return int(np.sum(space.modes & (law >= 0.5 * np.exp(space.log_target))))


def add_optimum(study: Study) -> None:
    """The law that trajectory balance has its optimum at, as a row; also for other targets."""
    law, found = optimum(study.space, study.backward)
    steps = np.array([0, study.scale.updates])
    metrics = {name: np.full((2, 1), value) for name, value in found.items()}
    metrics["loss"] = np.zeros((2, 1))
    study.add(OPTIMUM, study.row_setting("computed", None), steps, metrics, law, None)
    study.rows[-1]["metrics"]["half"] = {"mean": half_modes(study.space, law), "std": 0.0}
    walk = study.space.env
    assert isinstance(walk, LazyWalk)
    study.rows[-1]["alternatives"] = {
        str(target): optimum(enumerate_states(replace(walk, target=target)), study.backward)[1]
        for target in ALTERNATIVES[study.setting["target"]]
    }


def optimum(space: StateSpace, backward: AbstractDesign) -> tuple[np.ndarray, dict[str, float]]:
    r"""$R(x)\, h(x)$, normalised, and its metrics."""
    with jax.enable_x64(True):
        mass = backward_mass(
            space, backward_table(space, backward.backward(space, key=jax.random.key(0)))
        )
        law = np.exp(space.log_rewards) * np.asarray(mass[space.num_inner :], np.float64)
        law /= law.sum()
        found = judge(jnp.asarray(law), jnp.asarray(space.log_rewards), jnp.asarray(space.modes))
    return law, {name: float(value) for name, value in found.items()}


def routes(space: StateSpace, forward: AbstractPolicy) -> dict[str, dict[str, float]]:
    r"""For each factorised occupancy, $\rho_\lambda$ and the visits it has where no state is."""
    assert isinstance(forward, Tabular)
    with jax.enable_x64(True):
        policy = Tabular(jnp.asarray(np.asarray(forward.logits, np.float64)))
        wide = eqx.tree_at(lambda s: s.log_rewards, space, space.log_rewards.copy())

        @eqx.filter_jit
        def of(route: Factorised):
            exact = tabular.blocks_of(Fisher(wide, policy, Exact()(wide, policy)))
            other = tabular.blocks_of(Fisher(wide, policy, route(wide, policy)))
            lost = jnp.sum(exact.weights) - jnp.sum(other.weights)
            return tabular.relative_error(exact, other, DAMPING), lost / jnp.sum(exact.weights)

        return {
            route: dict(zip(("rho", "lost"), map(float, of(Factorised(route))), strict=True))
            for route in ROUTES
        }


# What is made of the runs.

COLUMNS = ("tv", "modes", "half", "elbo", "gap", "kl", "jsd")

LABELS = {"8 Gaussians": "tab:8g_ext", "Rings": "tab:rings_ext"}
"""The paper's tables, by target."""
RECONSTRUCTED = " (reconstructed)"


def claims(studies: list[Study]) -> list[dict[str, Any]]:
    found = []
    for study in studies:

        def tv(method: str, rates: str = TUNED, study: Study = study) -> float:
            return study.final(method, rates, "tv")

        def claim(text: str, holds: bool, evidence: str, study: Study = study) -> None:
            entry = {"claim": text, "holds": bool(holds), "evidence": evidence}
            found.append({"setting": study.setting, **entry})

        euclidean, ours = tv("Euclidean"), tv(DEFAULT, UNTUNED)
        if study.setting["P_B"] == CONSTANT:
            best = tv(OPTIMUM, "computed")
            for name in [*NATURALS, DEFAULT]:
                value = tv(name, UNTUNED if name == DEFAULT else TUNED)
                claim(
                    f"{name} ends at the optimum of this P_B, not at the target",
                    abs(value - best) < 0.01,
                    f"TV {value:.4f}, the optimum's {best:.4f}",
                )
            continue
        for name in NATURALS:
            value = tv(name)
            claim(f"{name}: TV at most 0.005", value <= 0.005, f"TV {value:.4f}")
            claim(
                f"{name}: half of tuned Euclidean's TV, or less",
                value <= euclidean / 2,
                f"TV {value:.4f} against {euclidean:.4f}",
            )
            count, modes = study.final(name, TUNED, "modes"), int(study.space.modes.sum())
            claim(f"{name}: all modes", count == modes, f"{count:g} of {modes}")
            claim(
                f"{name} ends below tuned Adam in TV",
                value < tv("Adam"),
                f"TV {value:.2e} against {tv('Adam'):.2e}",
            )
        claim(f"{DEFAULT}, untuned: TV at most 0.02", ours <= 0.02, f"TV {ours:.4f}")
        rivals = [row["method"] for row in study.rows if row["setting"]["rates"] == TUNED]
        found.extend(default_below(study, name, "tv") for name in rivals)
        joint, direct = (study.row(name, TUNED)["metrics"]["tv"] for name in (JOINT, MESSAGES))
        pooled = float(np.hypot(joint["std"], direct["std"]) / np.sqrt(2))
        claim(
            "messages end where the joint does, within one deviation of a run (pooled)",
            abs(direct["mean"] - joint["mean"]) <= pooled,
            f"TV {direct['mean']:.2e} against {joint['mean']:.2e}, deviation {pooled:.0e}",
        )
    return found


def page(results: Mapping[str, Any]) -> str:
    """A table for each target and P_B, the paper's rows in it, and what the routes cost."""
    sections = [
        f"# {results['experiment']}, {results['scale']} scale",
        results["about"],
        f"{made_by(results)} Mean ± standard deviation over {results['rows'][0]['seeds']} seeds "
        f"({PAIR_SEEDS} times as many for the tuned {JOINT} and {MESSAGES} with the normalised "
        "P_B, which are compared closely), from the exact terminal law, in nats. A mode counts "
        "when it has a tenth of its due probability (`modes`), or half of it (`half`).",
    ]
    head = ["method", "rates", "rate", *COLUMNS]
    for target, backward in _settings(results):
        rows = [
            [row["method"], row["setting"]["rates"], row["setting"]["rate"] or "none"]
            + [cell(row["metrics"][name]) for name in COLUMNS]
            for row in results["rows"]
            if (row["setting"]["target"], row["setting"]["P_B"]) == (target, backward)
        ]
        rows += list(_printed(target)) if backward == CONSTANT else []
        sections += [f"## {target}, P_B {backward}", table(head, rows)]
    proper = [row for row in results["rows"] if row["setting"]["P_B"] == NORMALISED]
    sections += standing({"rows": proper})  # under the other, the optimum is not the target
    routes = [
        [
            row["setting"]["target"],
            row["setting"]["P_B"],
            route,
            f"{n['rho']:.3g}",
            f"{n['lost']:.2%}",
        ]
        for row in results["rows"]
        for route, n in row.get("routes", {}).items()
    ]
    others = [
        [target, *(f"{found[name]:.4f}" for name in ("tv", "elbo", "gap", "kl", "jsd"))]
        for row in results["rows"]
        for target, found in row.get("alternatives", {}).items()
    ]
    sections += [
        "## The optimum of the constant P_B for other targets",
        "The paper's targets are not known; these too have its number of modes, and nearly its "
        "ELBO. Its plateaus are near such optima, and not near zero.",
        table(["target", "tv", "elbo", "gap", "kl", "jsd"], others),
        "## Factorised occupancies",
        "Of the policy that Natural (exact) ends with: the relative error of each route against "
        f"the exact Fisher (damping {DAMPING:g}), and the share of its visits that fall on places "
        "which cannot be reached by then.",
        table(["target", "P_B", "route", "rho", "not reachable"], routes),
        *claims_and_sweeps(results),
    ]
    return "\n\n".join(sections) + "\n"


def _settings(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = [(row["setting"]["target"], row["setting"]["P_B"]) for row in results["rows"]]
    return list(dict.fromkeys(found))


def _printed(target: str) -> Iterator[list[str]]:
    """The paper's rows."""
    for name, cells in PRINTED[LABELS[target]].rows.items():
        tv, modes, *rest = cells.values()
        yield [f"*{name}*", "*as printed*", "", tv, modes, "", *rest]


def measured(results: Mapping[str, Any], label: str) -> list[Measured]:
    """Our rows for a table of the paper, with the constant P_B that its numbers fit."""
    found = []
    for row in results["rows"]:
        setting, metrics = row["setting"], row["metrics"]
        if (LABELS[setting["target"]], setting["P_B"]) == (label, CONSTANT):
            cells = {
                column: (metrics[column.lower()]["mean"], cell(metrics[column.lower()]))
                for column in PRINTED[label].columns
            }
            how = f"ours, {setting['rates']}, {seed_count(row['seeds'])}"
            found.append(Measured(row["method"].removesuffix(RECONSTRUCTED), how, cells))
    return found


def paper_claims(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the paper says of its tables, of our runs with the constant P_B; then our claims."""
    found = []
    for target, label in LABELS.items():
        for rates in (PAPER, TUNED):
            ends = {row.method: row.cells for row in measured(results, label) if rates in row.how}
            for name in ("Natural (sample)", "Natural (exact)", "Natural (approx)"):
                for column, word, sign in (("TV", "lower", -1), ("modes", "more", 1)):
                    values = [ends[of][column][0] for of in (name, "Euclidean") if of in ends]
                    if len(values) == 2:
                        found.append({
                            "setting": {"target": target, "P_B": CONSTANT},
                            "claim": f"{name} ends with {word} {column} than Euclidean, {rates}",
                            "holds": sign * (values[0] - values[1]) > 0,
                            "evidence": f"{values[0]:.4g} against {values[1]:.4g}",
                        })  # fmt: skip
    return found + results["claims"]


def figures(results: dict[str, Any], out: Path, stem: str) -> list[Path]:
    """Distance over updates, laws beside the target, and bars of all final metrics."""
    drawn = []
    panels = [
        Panel(f"{target}, P_B {backward}: TV", "tv", {"target": target, "P_B": backward})
        for target, backward in _settings(results)
    ]
    curves = [c for c in results["curves"] if c["setting"]["rates"] != PAPER]
    drawn.append(draw_curves(curves, panels, out / f"{stem}.overview.png", columns=2))
    for target, backward in _settings(results):
        setting = {"target": target, "P_B": backward}
        name = f"{target}.{backward}".replace(" ", "_").lower()
        chosen = [c for c in curves if setting.items() <= c["setting"].items()]
        laws = {c["method"]: np.array(c["law"]) for c in chosen}
        law = np.exp(enumerated(results["scale"], target).log_target)
        laws, side = {"Target": law, **laws}, round(len(law) ** 0.5)
        drawn.append(draw_heat_maps(laws, side, out / f"{stem}.laws.{name}.png"))
        rows = {
            row["method"]: row["metrics"]
            for row in results["rows"]
            if setting.items() <= row["setting"].items() and row["setting"]["rates"] != PAPER
        }
        drawn.append(draw_bars(rows, ("tv", "kl", "jsd", "half"), out / f"{stem}.bars.{name}.png"))
    return drawn
