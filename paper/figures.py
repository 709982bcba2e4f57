"""Figures of the paper's experiments."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from natgfn.figures import draw_band, heat_maps, save

COLOURS = {
    "Euclidean": "#c44e52",
    "Natural (exact)": "#4c72b0",
    "Natural (sample)": "#55a868",
    "Natural (approx)": "#dd8452",
    "Natural (sample space)": "#8172b3",
    "Natural (messages)": "#937860",
    "Wasserstein (reconstructed)": "#da8bc3",
    "ACE (reconstructed)": "#8c8c8c",
    "Adam": "#ccb974",
    "optimum of this P_B": "black",
}


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
                draw_band(axis, curve["steps"], values, method, COLOURS.get(method))
        axis.set(yscale="log", xlabel="updates")
        axis.set_title(panel.title, fontsize="medium")
    share_legend(figure, axes, "outside lower center", columns=columns + 1)
    return save(figure, path)


def share_legend(
    figure: Figure, axes: np.ndarray, place: Any, *, columns: int = 1, fontsize: str = "small"
) -> None:
    """One legend for all axes, with a line for each label that any of them has."""
    lines = {str(line.get_label()): line for axis in axes.flat for line in axis.get_lines()}
    lines = {label: line for label, line in lines.items() if not label.startswith("_")}
    figure.legend(list(lines.values()), list(lines), loc=place, ncols=columns, fontsize=fontsize)


def draw_training(
    panels: Mapping[str, Mapping[str, tuple[Sequence[int], np.ndarray]]],
    label: str,
    path: Path,
    *,
    columns: int,
    log: bool,
    mark: int | None = None,
) -> Path:
    """A metric `[evaluations, seeds]` over updates, mean and deviation, with a dot at `mark`."""
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(5 * columns, 3.8 * rows), squeeze=False, layout="constrained"
    )
    for axis, (title, lines) in zip(axes.flat, panels.items(), strict=True):
        for name, (steps, values) in lines.items():
            mean, spread = values.mean(axis=1), values.std(axis=1)
            (line,) = axis.plot(steps, mean, label=name, linewidth=1.4)
            colour = line.get_color()
            axis.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.15)
            if mark is not None and mark in steps:
                axis.plot(mark, mean[list(steps).index(mark)], "o", color=colour, markersize=4)
        axis.set(xlabel="updates", ylabel=label, yscale="log" if log else "linear")
        axis.set_title(title, fontsize="medium")
        if lines:
            axis.legend(fontsize="x-small")
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
                             color="#dd8452", zorder=3)  # fmt: skip
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
        axis.legend(fontsize="small")
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
        "rho": ("states of the reference", "o"),
        "fresh": ("few states", "x"),
        "replayed": ("few, replayed", "+"),
    }
    for row, damping in enumerate(dampings):
        for axis, update in zip(axes[row], updates, strict=True):
            some = [point["dampings"][row] for point in points if point["updates"] == update]
            for column, (label, marker) in kinds.items():
                shown = [n for n in names if column != "rho" or n != whole]
                values = [np.mean([x["surrogates"][n][column] for x in some]) for n in shown]
                axis.plot(values, shown, marker, label=label, markersize=6)
            axis.axvline(1, color="black", linestyle=":", linewidth=1)
            axis.set(xscale="log", xlabel=r"$\rho_\lambda$")
            axis.set_title(f"{update} updates, damping {damping:g}", fontsize="medium")
    axes[0, 0].legend(fontsize="x-small")
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
        colours = [COLOURS.get(name, "0.6") for name in names]
        axis.barh(
            names, [v["mean"] for v in values], xerr=[v["std"] for v in values], color=colours
        )
        axis.set_title("modes, half of due" if metric == "half" else metric.upper())
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
