"""A posterior over graphs as a picture: the probabilities of edges, and the likely ones drawn."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from ..figures import plt, save

_THRESHOLD = 0.5
_DARK = "#1f4e79"
_AS_IT_IS: dict[str, Any] = {"parse_math": False}  # names of columns may have dollar signs


def draw_posterior(marginals: pd.DataFrame, path: Path) -> Path:
    """A heat map, and the graph of the probable edges, beside the pairs that are joined at all."""
    size = len(marginals)
    side = max(4.0, 0.48 * size)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(2.15 * side, side), layout="constrained", width_ratios=(1.1, 1)
    )
    _heat_map(left, marginals)
    _graph(right, marginals)
    title = f"joined (light) and directed (dark) with probability over {_THRESHOLD}"
    right.set_title(title, fontsize="medium")
    return save(figure, path)


def _heat_map(axis: Any, marginals: pd.DataFrame) -> None:
    values = marginals.to_numpy()
    shown = np.where(np.eye(len(values), dtype=bool), np.nan, values)
    image = axis.imshow(shown, cmap="Blues", vmin=0, vmax=1)
    names = list(marginals.columns)
    axis.set_xticks(range(len(names)), names, rotation=45, ha="right", **_AS_IT_IS)
    axis.set_yticks(range(len(names)), names, **_AS_IT_IS)
    axis.set(xlabel="target", ylabel="source")
    axis.set_title("probability of each edge", fontsize="medium")
    for (row, column), value in np.ndenumerate(shown):
        if value >= 0.005:
            colour = "white" if value > 0.6 else "0.25"
            text = "1" if value >= 0.995 else f"{value:.2f}".lstrip("0")
            axis.text(column, row, text, ha="center", va="center", color=colour, fontsize=7)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.figure.colorbar(image, ax=axis, shrink=0.8, pad=0.02)


def _graph(axis: Any, marginals: pd.DataFrame) -> None:
    values = marginals.to_numpy()
    points, radius = draw_variables(axis, list(marginals.columns))

    def width(value: float, most: float) -> float:
        return most * (0.3 + 0.7 * (value - _THRESHOLD) / (1 - _THRESHOLD)) + 0.6

    for i, j in np.argwhere(np.triu(values + values.T) > _THRESHOLD):
        wide = width(float(values[i, j] + values[j, i]), 6.0)
        draw_edge(axis, points[i], points[j], radius, style="-", linewidth=wide, color="#c5d3e0")
    for i, j in np.argwhere(values > _THRESHOLD):
        wide = width(float(values[i, j]), 1.0)
        draw_edge(axis, points[i], points[j], radius, linewidth=wide, color=_DARK)


def draw_variables(
    axis: Any, names: Sequence[str]
) -> tuple[Float[np.ndarray, "variables 2"], float]:
    """Variables on a circle: their places, and the radius of each, in the units of the axis."""
    from matplotlib.patches import Circle

    angles = np.pi / 2 - 2 * np.pi * np.arange(len(names)) / len(names)
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    radius = min(0.145, 2.4 / len(names))
    for name, (x, y) in zip(names, points, strict=True):
        axis.add_patch(
            Circle((x, y), radius, facecolor="#eef3f8", edgecolor=_DARK, linewidth=1, zorder=3)
        )
        size = np.clip(330 * radius / len(name), 5, 10)
        axis.text(x, y, name, ha="center", va="center", fontsize=size, zorder=4, **_AS_IT_IS)
    axis.set(xlim=(-1.22, 1.22), ylim=(-1.22, 1.22), aspect="equal")
    axis.axis("off")
    return points, radius


def draw_edge(
    axis: Any,
    start: Float[np.ndarray, " 2"],
    end: Float[np.ndarray, " 2"],
    radius: float,
    *,
    style: str = "-|>",
    bend: float = 0.2,
    **line: Any,
) -> None:
    """A line between two variables, bent towards the middle; `line` is as matplotlib has it."""
    from matplotlib.patches import FancyArrowPatch

    along, middle = end - start, (start + end) / 2
    side = np.sign((along[1] * middle[0] - along[0] * middle[1]).round(6))
    gap = along / np.linalg.norm(along) * (radius + 0.01)
    axis.add_patch(
        FancyArrowPatch(
            tuple(start + gap),
            tuple(end - gap),
            arrowstyle=style,
            mutation_scale=14,
            connectionstyle=f"arc3,rad={-bend * side}",
            shrinkA=0,
            shrinkB=0,
            capstyle="butt",
            **line,
        )
    )
