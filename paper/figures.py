"""Figures of the paper's experiments."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from natgfn.dag.figure import draw_edge, draw_variables
from natgfn.figures import draw_band, heat_maps, save

_BLUE, _ORANGE, _GREEN, _RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
_SKY, _PURPLE, _GREY, _BLACK = "#56b4e9", "#cc79a7", "#7f7f7f", "#000000"
# Eight colours that the colour-blind can tell apart (Okabe and Ito, with grey for their yellow).

_OURS = "Natural (sample space)"
STYLES: dict[str, tuple[str, str, str]] = {
    "Euclidean": (_RED, "o", "-"),
    "SGD": (_RED, "s", "-"),
    "SGD, eps": (_RED, "D", "--"),
    "Adam": (_ORANGE, "o", "-"),
    "Adam, eps": (_ORANGE, "s", "--"),
    "Adam, tuned": (_ORANGE, "D", "-"),
    "Adam, as the peer": (_ORANGE, "^", "-"),
    "Adam 5e-3": (_PURPLE, "^", "-"),
    "Adam 5e-3 + noise": (_PURPLE, "<", "--"),
    "Adam 5e-3 + mixed": (_PURPLE, "P", "-."),
    "Adam, on-policy": (_ORANGE, "X", ":"),
    "Adam, eps, on-policy": (_ORANGE, "<", ":"),
    "Adam, log Z 0.1": (_ORANGE, ">", "--"),
    "Adam 1e-3, log Z 0.1": (_ORANGE, "*", "-."),
    "Adam, advantages": (_ORANGE, "p", "--"),
    "Adam, without noise": (_ORANGE, "h", "-."),
    "Adam, 4 variables": (_ORANGE, "d", ":"),
    "Network, Adam": (_ORANGE, "8", "--"),
    "KL-controlled Adam": (_RED, "^", "-"),
    "Adaptive Teacher": (_GREY, "o", "-"),
    "ACE (reconstructed)": (_GREY, "s", "-"),
    "Wasserstein (reconstructed)": (_PURPLE, "s", "-"),
    "Natural (exact)": (_GREEN, "o", "-"),
    "Natural (sample)": (_SKY, "o", "-"),
    "Natural (approx)": (_PURPLE, "o", "-"),
    "Natural (messages)": (_BLACK, "o", "-"),
    "Natural CG": (_GREEN, "s", "-"),
    "Natural K-FAC": (_SKY, "s", "-"),
    "Natural K-FAC, on-policy": (_SKY, "D", ":"),
    "Damped Fisher": (_GREEN, "^", "-"),
    "Damped K-FAC": (_SKY, "^", "-"),
    _OURS: (_BLUE, "o", "-"),
    f"{_OURS}, tuned": (_BLUE, "s", "-"),
    "Default": (_BLACK, "P", "-"),
    "Default (half from the list)": (_BLACK, "^", "--"),
    f"{_OURS} + mixed": (_BLUE, "P", "-."),
    f"{_OURS} + Teacher": (_BLUE, "^", "--"),
    "Sample space": (_BLUE, "D", "-"),
    "Sample space, 4 variables": (_BLUE, "d", ":"),
    "Sample space (default if wide)": (_BLUE, "X", "-."),
    "Network, sample space (default)": (_BLUE, "8", "--"),
    "Natural, exact separators": (_GREEN, "D", "-"),
    "Natural, separators with a floor": (_GREEN, "v", "--"),
    "Natural, separators with a floor, advantages": (_GREEN, "p", "-."),
    "Natural, sampled": (_SKY, "v", "-"),
    "Natural, sampled, advantages": (_SKY, "p", "--"),
    "Natural, without noise (default)": (_BLACK, "D", "-"),
    "Natural, truncated to 2": (_PURPLE, "D", "--"),
    "Natural, truncated to 4": (_PURPLE, "d", ":"),
    "Natural, beliefs on 4": (_PURPLE, "v", "-."),
    "exact posterior": (_BLACK, "s", "-"),
    "optimum of this P_B": (_BLACK, "x", ":"),
}
"""Colour, marker and line of each method, the same in every figure."""


def style(method: str, points: int = 1) -> dict[str, Any]:
    """How matplotlib draws a method's line of so many points, with a marker on every eighth part.

    One that `STYLES` has not is dotted grey, so that a long run is not lost; a test asks for them.
    """
    colour, marker, line = STYLES.get(method, (_GREY, ".", ":"))
    every = max(1, points // 8)
    return {"color": colour, "marker": marker, "linestyle": line, "markersize": 4,
            "markevery": every}  # fmt: skip


class Panel(NamedTuple):
    """One axis of a figure of curves."""

    title: str
    metric: str
    where: Mapping[str, Any]
    """Which curves: those whose setting has these values."""


def draw_curves(
    curves: Sequence[Mapping[str, Any]], panels: Sequence[Panel], path: Path, *, columns: int
) -> Path:
    """A metric over updates for every method: geometric mean, and one deviation in log space."""
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.6 * columns, 2.9 * rows), squeeze=False, layout="constrained"
    )
    for axis, panel in zip(axes.flat, panels, strict=False):
        for curve in curves:
            if panel.where.items() <= curve["setting"].items():
                method = curve["method"]
                values = np.array(curve[panel.metric])
                draw_band(axis, curve["steps"], values, method, **style(method, len(values)))
        axis.set(yscale="log", xlabel="updates")
        axis.set_title(panel.title, fontsize="medium")
    share_legend(figure, axes, "outside lower center", columns=columns + 1)
    return save(figure, path)


def share_legend(
    figure: Figure, axes: np.ndarray, place: Any, *, columns: int = 1, fontsize: str = "small"
) -> None:
    """One legend for all axes, with an entry for each label that any of them has."""
    found = [axis.get_legend_handles_labels() for axis in axes.flat]
    drawn = {
        label: mark for marks, labels in found for mark, label in zip(marks, labels, strict=True)
    }
    figure.legend(list(drawn.values()), list(drawn), loc=place, ncols=columns, fontsize=fontsize)


def draw_training(
    panels: Mapping[str, Mapping[str, tuple[Sequence[int], np.ndarray]]],
    label: str,
    path: Path,
    *,
    columns: int,
    log: bool,
    mark: int | None = None,
) -> Path:
    """A metric `[evaluations, seeds]` over updates, mean and deviation, with a circle at `mark`."""
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(5 * columns, 3.8 * rows), squeeze=False, layout="constrained"
    )
    for axis, (title, lines) in zip(axes.flat, panels.items(), strict=True):
        for name, (steps, values) in lines.items():
            mean, spread = values.mean(axis=1), values.std(axis=1)
            (line,) = axis.plot(steps, mean, label=name, linewidth=1.4, **style(name, len(mean)))
            colour = line.get_color()
            axis.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.15)
            if mark is not None and mark in steps:
                axis.plot(mark, mean[list(steps).index(mark)], "o", color=colour, markersize=8,
                          fillstyle="none")  # fmt: skip
        axis.set(xlabel="updates", ylabel=label, yscale="log" if log else "linear")
        axis.set_title(title, fontsize="medium")
    share_legend(figure, axes, "outside lower center", columns=2 * columns)
    return save(figure, path)


def draw_direction_errors(points: Sequence[Mapping[str, Any]], path: Path) -> Path:
    r"""True direction errors of surrogates against $\rho_\lambda$, under the theorem's limit."""
    dampings = sorted({point["damping"] for point in points})
    figure, axes = plt.subplots(
        1, len(dampings), figsize=(4 * len(dampings), 3.4), squeeze=False, layout="constrained"
    )
    sizes = sorted({point["size"] for point in points if point["surrogate"] == "sampled"})
    for axis, damping in zip(axes.flat, dampings, strict=True):
        chosen = [point for point in points if point["damping"] == damping]
        for point in chosen:
            if point["surrogate"] == "factorised":
                axis.scatter(point["rho"], point["fisher"], marker="*", s=90, label="factorised",
                             color=_PURPLE, zorder=3)  # fmt: skip
            elif point["law"] == "on-policy":
                shade = sizes.index(point["size"]) / max(1, len(sizes) - 1)
                colour = plt.get_cmap("viridis")(shade * 0.95)
                label = f"N={point['size']}" if point["size"] in (sizes[0], sizes[-1]) else None
                axis.scatter(point["rho"], point["fisher"], s=8, color=colour, label=label)
        largest = max(max(point["rho"]) for point in chosen)
        smallest = min(min(point["rho"]) for point in chosen)
        rho = np.geomspace(smallest / 2, 0.995, 200)
        axis.plot(rho, rho / (1 - rho), color="black", linewidth=1, label="limit")
        axis.axvline(1, color="black", linestyle=":", linewidth=1)
        axis.set(xscale="log", yscale="log", xlabel=r"$\rho_\lambda$", xlim=(None, 1.5 * largest))
        axis.set(ylabel="relative direction error")
        axis.set_title(f"damping {damping:g}", fontsize="medium")
    share_legend(figure, axes, "outside lower center", columns=4)
    return save(figure, path)


def draw_surrogates(points: Sequence[Mapping[str, Any]], whole: str, path: Path) -> Path:
    r"""$\rho_\lambda$ of each surrogate: on the states of the reference, and on few states, where
    `whole` is that of sampling alone."""
    dampings = [found["damping"] for found in points[0]["dampings"]]
    names = list(points[0]["dampings"][0]["surrogates"])[::-1]
    updates = list(dict.fromkeys(point["updates"] for point in points))
    figure, axes = plt.subplots(
        len(dampings), len(updates), figsize=(3.2 * len(updates) + 1.6, 2.4 * len(dampings)),
        squeeze=False, sharex="row", sharey=True, layout="constrained",
    )  # fmt: skip
    kinds = {
        "rho": ("states of the reference", "o", _BLUE),
        "fresh": ("few states", "x", _ORANGE),
        "replayed": ("few, replayed", "+", _GREEN),
    }
    for row, damping in enumerate(dampings):
        for axis, update in zip(axes[row], updates, strict=True):
            some = [point["dampings"][row] for point in points if point["updates"] == update]
            for column, (label, marker, colour) in kinds.items():
                shown = [n for n in names if column != "rho" or n != whole]
                values = [np.mean([x["surrogates"][n][column] for x in some]) for n in shown]
                axis.plot(values, shown, marker, color=colour, label=label, markersize=6)
            axis.axvline(1, color="black", linestyle=":", linewidth=1)
            axis.set(xscale="log", xlabel=r"$\rho_\lambda$")
            axis.set_title(f"{update} updates, damping {damping:g}", fontsize="medium")
    share_legend(figure, axes, "outside lower center", columns=len(kinds))
    return save(figure, path)


def draw_bars(
    rows: Mapping[str, Mapping[str, Mapping[str, float]]], metrics: Sequence[str], path: Path
) -> Path:
    """Final metrics of every method, with one standard deviation."""
    figure, axes = plt.subplots(
        1, len(metrics), figsize=(2.6 * len(metrics) + 1.6, 3.2), sharey=True, layout="constrained"
    )
    names = list(rows)[::-1]
    for axis, metric in zip(axes, metrics, strict=True):
        values = [rows[name][metric] for name in names]
        colours = [style(name)["color"] for name in names]
        axis.barh(
            names, [v["mean"] for v in values], xerr=[v["std"] for v in values], color=colours
        )
        axis.set_title("modes, half of due" if metric == "half" else metric.upper())
    return save(figure, path)


SHOWN = 0.25
"""The least probability of an edge that a graph shows."""


def draw_agreement(laws: Mapping[str, pd.DataFrame], reference: str, path: Path) -> Path:
    """`fig:sachs_posterior_graphs`: probable edges, coloured by whether the reference has them.

    Args:
        laws: probabilities of edges by title, row is source; the reference is one of them.
        reference: the title of the graph to agree with.
        path: of the PNG file.
    """
    columns = min(len(laws), 5)
    rows = -(-len(laws) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.6 * columns, 3.8 * rows), squeeze=False, layout="constrained"
    )
    agreed = laws[reference].to_numpy() > 0.5
    for axis in axes.flat[len(laws) :]:
        axis.axis("off")
    for axis, (title, marginals) in zip(axes.flat, laws.items(), strict=False):
        values = marginals.to_numpy()
        points, radius = draw_variables(axis, list(marginals.columns))
        for i, j in np.argwhere(values >= SHOWN):
            colour, value = (_BLUE if agreed[i, j] else _ORANGE), float(values[i, j])
            line = {"linewidth": 0.4 + 2.2 * value, "alpha": value, "color": colour}
            beside = i > j and values[j, i] >= SHOWN  # the other way is drawn, too
            draw_edge(axis, points[i], points[j], radius, bend=0.45 if beside else 0.2, **line)
        axis.set_title(title, fontsize="medium")
    keys = {f"in the {reference}": _BLUE, "not in it": _ORANGE}
    figure.legend(
        [Line2D([], [], color=colour, linewidth=2.6) for colour in keys.values()],
        list(keys), loc="outside lower center", ncols=2,
        title=f"edges with probability {SHOWN} and more; width and opacity by probability",
    )  # fmt: skip
    return save(figure, path)


def draw_heat_maps(laws: Mapping[str, np.ndarray], side: int, path: Path) -> Path:
    """A figure of `heat_maps`, at most five in a row."""
    columns = min(len(laws), 5)
    rows = -(-len(laws) // columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(2.5 * columns + 0.6, 2.6 * rows),
        squeeze=False,
        layout="constrained",
    )
    heat_maps(figure, axes.ravel(), laws, side)
    for axis in axes.flat[len(laws) :]:
        axis.axis("off")
    return save(figure, path)
