"""A posterior over graphs as a picture: the probabilities of edges, and the likely ones drawn."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

from ..report.figures import plt, save

_THRESHOLD = 0.5
_RADIUS = 0.17


def draw_posterior(marginals: pd.DataFrame, path: Path) -> Path:
    """A heat map, and the graph of edges over 1/2, with lines where only the direction is open."""
    size = len(marginals)
    side = max(4.0, 0.48 * size)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(2.15 * side, side), layout="constrained", width_ratios=(1.1, 1)
    )
    _heat_map(left, marginals)
    _graph(right, marginals)
    return save(figure, path)


def _heat_map(axis: Axes, marginals: pd.DataFrame) -> None:
    values = marginals.to_numpy()
    shown = np.where(np.eye(len(values), dtype=bool), np.nan, values)
    image = axis.imshow(shown, cmap="Blues", vmin=0, vmax=1)
    names = list(marginals.columns)
    axis.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axis.set_yticks(range(len(names)), names)
    axis.set(xlabel="to", ylabel="from", title="probability of each edge")
    for (row, column), value in np.ndenumerate(shown):
        if value >= 0.005:
            colour = "white" if value > 0.6 else "0.25"
            text = "1" if value >= 0.995 else f"{value:.2f}".lstrip("0")
            axis.text(column, row, text, ha="center", va="center", color=colour, fontsize=7)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.figure.colorbar(image, ax=axis, shrink=0.8, pad=0.02)


def _graph(axis: Axes, marginals: pd.DataFrame) -> None:
    values, names = marginals.to_numpy(), list(marginals.columns)
    angles = np.pi / 2 - 2 * np.pi * np.arange(len(names)) / len(names)
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for i, j in np.argwhere(values + values.T > _THRESHOLD):
        if values[i, j] > _THRESHOLD:
            _connect(axis, points[i], points[j], values[i, j], "-|>", "#1f4e79")
        elif i < j and values[j, i] <= _THRESHOLD:
            _connect(axis, points[i], points[j], values[i, j] + values[j, i], "-", "0.55")
    for name, (x, y) in zip(names, points, strict=True):
        axis.add_patch(
            plt.Circle((x, y), _RADIUS, facecolor="#eef3f8", edgecolor="#1f4e79", zorder=3)
        )
        axis.text(x, y, name, ha="center", va="center", fontsize=8, zorder=4)
    axis.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal")
    axis.set_title(f"arrows: probability over {_THRESHOLD}; lines: the direction is open")
    axis.axis("off")


def _connect(
    axis: Axes, start: np.ndarray, end: np.ndarray, value: float, style: str, colour: str
) -> None:
    towards = (end - start) / np.linalg.norm(end - start) * (_RADIUS + 0.02)
    axis.add_patch(
        FancyArrowPatch(
            tuple(start + towards),
            tuple(end - towards),
            arrowstyle=style,
            mutation_scale=13,
            linewidth=0.6 + 2.2 * (value - _THRESHOLD) / (1 - _THRESHOLD),
            color=colour,
            connectionstyle="arc3,rad=0.08",
            shrinkA=0,
            shrinkB=0,
        )
    )
