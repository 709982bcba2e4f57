"""The page of the deceptive grid: tables beside the paper's, claims, sweeps and figures."""

from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from natgfn.envs import DeceptiveGrid
from natgfn.statespace import StateSpace, enumerate_states

from ..figures import draw_heat_maps, draw_training
from ..tables import made_by, table
from .deceptive_methods import METHODS, ON_POLICY, OURS, RIVALS, SWEEP_SEED, SWEEPS, cost

COLUMNS = ("tv", "discovered", "elbo", "gap", "kl", "jsd")

_TABLES = {
    (128, 15_000): """
Adam 0.1171±0.0170 676±0.4 -0.4542±0.0576 0.2281±0.0576 0.1055±0.0265 0.0154±0.0036
Adam, eps 0.2433±0.0352 610±21 -0.8249±0.0747 0.5988±0.0747 0.3497±0.0443 0.0653±0.0146
SGD 0.7490±0.0071 352±17 -8.1380±0.0594 7.9119±0.0594 7.1384±0.0806 0.4390±0.0053
SGD, eps 0.7567±0.0065 345±7.8 -8.1775±0.0638 7.9513±0.0638 7.3366±0.1086 0.4433±0.0054
Natural CG 0.1766±0.0091 666±11 -1.0575±0.0258 0.8314±0.0258 0.7606±0.0669 0.0457±0.0041
Natural K-FAC 0.1927±0.0137 673±6.3 -1.3401±0.0840 1.1140±0.0840 1.1574±0.1427 0.0545±0.0060
Adaptive Teacher 0.1965±0.0151 676±0.0 -0.7283±0.0896 0.5021±0.0896 0.3258±0.0584 0.0418±0.0038
""",
    (256, 15_000): """
Adam 0.2721±0.0356 2031±251 -0.9361±0.1245 0.6851±0.1245 0.4169±0.0867 0.0836±0.0219
Adam, eps 0.5069±0.0154 878±65 -1.4407±0.0905 1.1896±0.0905 0.8786±0.0234 0.2154±0.0111
SGD 0.7808±0.0052 1150±9.6 -8.3038±0.0310 8.0528±0.0310 7.7384±0.0848 0.4653±0.0041
SGD, eps 0.7889±0.0053 1012±22 -8.3647±0.0342 8.1136±0.0342 8.0864±0.0996 0.4680±0.0042
Natural CG 0.2753±0.0185 2405±76 -1.3872±0.0896 1.1361±0.0896 1.0838±0.0934 0.0848±0.0090
Natural K-FAC 0.3052±0.0246 2406±81 -1.6213±0.0653 1.3702±0.0653 1.4197±0.1557 0.1020±0.0087
Adaptive Teacher 0.2574±0.0133 2572±7.7 -1.0089±0.0587 0.7579±0.0587 0.6152±0.0759 0.0705±0.0041
""",
    (256, 30_000): """
Adam 0.1061±0.0073 2524±66 -0.4702±0.0388 0.2191±0.0388 0.1207±0.0210 0.0180±0.0055
Adam, eps 0.3371±0.0436 1672±119 -1.0285±0.1038 0.7774±0.1038 0.5559±0.0588 0.1198±0.0193
SGD 0.7440±0.0154 1394±21 -8.2004±0.0388 7.9493±0.0388 7.1046±0.1205 0.4394±0.0098
SGD, eps 0.7507±0.0145 1218±19 -8.1839±0.0457 7.9328±0.0457 7.2178±0.1104 0.4421±0.0086
Natural CG 0.1566±0.0164 2564±19 -1.0435±0.0922 0.7924±0.0922 0.9458±0.1021 0.0436±0.0049
Natural K-FAC 0.1706±0.0108 2569±24 -1.3890±0.1536 1.1380±0.1536 1.4652±0.2858 0.0515±0.0057
Adaptive Teacher 0.1911±0.0205 2601±0.0 -0.7969±0.0435 0.5458±0.0435 0.4614±0.0545 0.0439±0.0061
""",
}
PAPER = {
    setting: {
        name: numbers
        for name, *numbers in (line.rsplit(" ", len(COLUMNS)) for line in text.strip().split("\n"))
    }
    for setting, text in _TABLES.items()
}
"""`tab:deceptive_half_H128`, `tab:deceptive_half_H256` and `tab:deceptive_full_H256`, in the
order of `COLUMNS`."""


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
            head = ["method", "seeds", "TV", "modes", "ELBO", "Gap", "KL", "JSD", "rejected"]
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
    paper = PAPER.get((row.side, step), {}).get(name, ()) if row.batch == 16 else ()
    cells = []
    for metric, theirs in zip_longest(COLUMNS, paper):
        values = row.at(metric, step)
        text = f"{values.mean():.4g} ± {values.std():.2g}"
        cells.append(f"{text} ({theirs})" if theirs else text)
    return [row.name, str(len(row.runs)), *cells, f"{row.at('rejected', step).sum():g}"]


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
        "as in the paper": list(PAPER[128, 15_000]),
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
