"""The page of the deceptive grid: tables beside the paper's, claims, sweeps and figures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from natgfn.envs import DeceptiveGrid
from natgfn.statespace import StateSpace, enumerate_states

from ..figures import draw_heat_maps, draw_training
from ..printed import PRINTED, Measured, seed_count
from ..tables import made_by, table
from .deceptive_methods import METHODS, ON_POLICY, OURS, RIVALS, SWEEP_SEED, SWEEPS, cost

COLUMNS = ("tv", "discovered", "elbo", "gap", "kl", "jsd")

NAMES = dict(zip(("TV", "modes", "ELBO", "Gap", "KL", "JSD"), COLUMNS, strict=True))
"""Of the paper's columns, and ours."""
LABELS = {
    (128, 15_000): "tab:deceptive_half_H128",
    (256, 15_000): "tab:deceptive_half_H256",
    (256, 30_000): "tab:deceptive_full_H256",
}
"""The paper's tables, by side and updates."""


class Row(NamedTuple):
    """The runs of one method in one setting."""

    side: int
    batch: int
    name: str
    runs: list[Mapping[str, Any]]

    def at(self, metric: str, step: int) -> np.ndarray:
        """A metric of every seed after so many updates."""
        return np.array([run[metric][run["steps"].index(step)] for run in self.runs])


def rows(results: Mapping[str, Any]) -> list[Row]:
    """The judged runs by setting and method; sweeps are apart.

    A method whose tuned setting is its default is given once.
    """
    found: dict[tuple[int, int, str], list[Mapping[str, Any]]] = {}
    for entry in results["runs"]:
        if entry["seed"] != SWEEP_SEED:
            key = (entry["side"], entry["batch"], entry["name"])
            found.setdefault(key, []).append(entry)
    order = [*METHODS, *(f"{name}, tuned" for name in SWEEPS)]
    keys = sorted(found, key=lambda key: (*key[:2], order.index(key[2])))
    kinds = {key: found[key][0]["method"] for key in keys}

    def is_default(side: int, batch: int, name: str) -> bool:
        plain = side, batch, name.removesuffix(", tuned")
        return plain[2] != name and kinds.get(plain) == kinds[side, batch, name]

    return [Row(*key, found[key]) for key in keys if not is_default(*key)]


def page(results: Mapping[str, Any]) -> str:
    """All tables, with the paper's numbers, and the sweeps."""
    sections = [
        f"# {results['experiment']}, {results['scale']} scale",
        results["about"],
        f"{made_by(results)} Mean ± standard deviation over the seeds, in nats; the paper's in "
        "brackets. `rejected` counts updates that were not taken because a parameter would not "
        "have been finite.",
    ]
    found = rows(results)
    for side, batch in sorted({(row.side, row.batch) for row in found}):
        chosen = [row for row in found if (row.side, row.batch) == (side, batch)]
        last = chosen[0].runs[0]["steps"][-1]
        reported = [*results["scale_of_runs"]["report"], last]
        for step in sorted({step for step in reported if step <= last}):
            head = ["method", "seeds", *NAMES, "rejected"]
            body = [_line(row, step) for row in chosen]
            sections += [f"## H = {side}, batch {batch}, {step:,} updates", table(head, body)]
    sections += [
        "## Claims",
        "Is ours ahead in the mean, after as many updates, and in the time of the rival's updates? "
        "`cost` is that of one of ours in those of the rival (`natgfn bench neural`).",
        _claims(found),
        "## Sweeps",
        _sweeps(results),
    ]
    return "\n\n".join(sections) + "\n"


def _line(row: Row, step: int) -> list[str]:
    name = row.name.removesuffix(ON_POLICY)
    label = LABELS.get((row.side, step)) if row.batch == 16 else None
    paper = PRINTED[label].rows.get(name, {}) if label else {}
    cells = [
        f"{_mean(row.at(metric, step))} ({paper[column]})"
        if column in paper
        else _mean(row.at(metric, step))
        for column, metric in NAMES.items()
    ]
    return [row.name, str(len(row.runs)), *cells, f"{row.at('rejected', step).sum():g}"]


def _mean(values: np.ndarray) -> str:
    return f"{values.mean():.4g} ± {values.std():.2g}"


def measured(results: Mapping[str, Any], label: str) -> list[Measured]:
    """Our rows for a table of the paper: its methods, on policy and tuned too, and ours."""
    side, step = next(setting for setting, name in LABELS.items() if name == label)
    found = []
    for row in rows(results):
        if (row.side, row.batch) != (side, 16):
            continue
        name = row.name.removesuffix(ON_POLICY).removesuffix(", tuned")
        if name in PRINTED[label].rows or row.name == OURS:
            how = "ours" + row.name.removeprefix(name)
            values = {column: row.at(metric, step) for column, metric in NAMES.items()}
            cells = {column: (float(of.mean()), _mean(of)) for column, of in values.items()}
            found.append(Measured(name, f"{how}, {seed_count(len(row.runs))}", cells))
    return found


def paper_claims(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the paper says of `fig:deceptive_visited`, of our runs."""
    by_key = {(row.side, row.name): row for row in rows(results) if row.batch == 16}
    found = []
    for side in sorted({side for side, _ in by_key}):
        for step in (6_000, 15_000, 30_000):

            def modes(name: str, side: int = side, step: int = step) -> float | None:
                row = by_key.get((side, name))
                steps = row.runs[0]["steps"] if row else ()
                return float(row.at("discovered", step).mean()) if row and step in steps else None

            for name in (
                "Natural CG",
                "Natural CG, tuned",
                "Natural K-FAC",
                "Natural K-FAC, tuned",
            ):
                rivals = {"Adam": 1.0, f"Adam{ON_POLICY}": 1.0, "Adaptive Teacher": 0.95}
                for rival, share in rivals.items():
                    mine, theirs = modes(name), modes(rival)
                    if mine is None or theirs is None:
                        continue
                    more = "more modes than" if share == 1 else "nearly (95%) the modes of"
                    found.append({
                        "setting": {"H": side, "updates": step},
                        "claim": f"{name} has visited {more} {rival}",
                        "holds": mine > share * theirs,
                        "evidence": f"{mine:.4g} against {theirs:.4g}",
                    })  # fmt: skip
    return found


def _claims(found: list[Row]) -> str:
    """Whether ours is ahead, at every setting and step that has both."""
    by_key = {(row.side, row.batch, row.name): row for row in found}
    body = []
    for row in found:
        if not row.name.startswith(OURS):
            continue
        for name in RIVALS:
            rival, steps = by_key.get((row.side, row.batch, name)), row.runs[0]["steps"]
            if rival is None:
                continue
            for step in sorted({s for s in (6_000, 15_000, steps[-1]) if s in steps}):
                where = f"H={row.side}, batch {row.batch}, {step:,}"
                ratio = cost(row.name) / cost(name)
                then = max(s for s in steps if s <= step / max(ratio, 1))
                verdicts = (_ahead(row, step, rival, step), _ahead(row, then, rival, step))
                body.append([where, row.name, name, *verdicts[0], f"{ratio:.2g}", *verdicts[1]])
    metrics = ["TV", "KL", "modes"]
    head = [*metrics, "cost", *(f"{metric} in time" for metric in metrics)]
    return table(["updates", "ours", "against", *head], body)


def _ahead(row: Row, step: int, rival: Row, rivals_step: int) -> list[str]:
    """For each metric whether a method is ahead of another in the mean, and the means."""
    cells = []
    for metric, sign in (("tv", -1), ("kl", -1), ("discovered", 1)):
        mine, theirs = row.at(metric, step).mean(), rival.at(metric, rivals_step).mean()
        verdict = "level" if mine == theirs else "yes" if sign * (mine - theirs) > 0 else "**no**"
        cells.append(f"{verdict}, {mine:.4g} against {theirs:.4g}")
    return cells


def _sweeps(results: Mapping[str, Any]) -> str:
    body = [
        [e["name"], f"{e['tv'][-1]:.4g}", f"{e['kl'][-1]:.4g}", f"{e['discovered'][-1]:g}"]
        for e in results["runs"]
        if e["seed"] == SWEEP_SEED
    ]
    best = "; ".join(
        f"{name}: {label or 'not finished'}" for name, label in results["best"].items()
    )
    return f"Best: {best}.\n\n" + table(["trial", "TV", "KL", "modes"], body)


def figures(results: Mapping[str, Any], out: Path, stem: str) -> list[Path]:
    """Modes, TV and L1 over training, and heat maps of the first seed."""
    found = [row for row in rows(results) if row.batch == 16]
    sides = sorted({row.side for row in found})
    drawn = []
    if not sides:  # so far there are only sweeps
        return drawn
    shown = {
        "as in the paper": list(PRINTED["tab:deceptive_half_H128"].rows),
        "ours and its rivals": [*(name for name in METHODS if name.startswith(OURS)), *RIVALS],
    }
    for metric, label in (("discovered", "modes visited"), ("tv", "TV"), ("l1", "mean |p - π|")):
        panels = {
            f"H = {side}, {title}": {
                row.name: (row.runs[0]["steps"], np.array([run[metric] for run in row.runs]).T)
                for row in found
                if row.side == side and row.name in names
            }
            for side in sides
            for title, names in shown.items()
        }
        path = out / f"{stem}.{metric}.png"
        log = metric != "discovered"
        drawn.append(draw_training(panels, label, path, columns=2, mark=6_000, log=log))
    for side in sides:
        space = enumerate_states(DeceptiveGrid(side=side))
        laws = {"Target": blocks(space, np.exp(space.log_target))}
        for row in found:
            for entry in row.runs:
                if row.side == side and "law" in entry:
                    laws[row.name] = np.array(entry["law"])
        cells = round(len(laws["Target"]) ** 0.5)
        drawn.append(draw_heat_maps(laws, cells, out / f"{stem}.heat_map.h{side}.png"))
    return drawn


CELLS = 32
"""Heat maps are kept as so many blocks of cells a side."""


def blocks(space: StateSpace, law: np.ndarray) -> np.ndarray:
    """Mean probability of the cells in each block; the unreachable corner shows as the least."""
    cells = np.asarray(space.terminals.cell)
    side = int(cells.max()) + 1
    grid = np.full((side, side), law.min())
    grid[tuple(cells.T)] = law
    block = max(side // CELLS, 1)
    return grid.reshape(side // block, block, side // block, block).mean(axis=(1, 3)).ravel()
