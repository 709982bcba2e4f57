"""Figures of runs: curves over training, and terminal laws beside their target."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator


def draw_laws(
    target: Float[np.ndarray, " objects"],
    laws: Float[np.ndarray, "seeds objects"],
    steps: Int[np.ndarray, " lines"],
    metrics: Mapping[str, Float[np.ndarray, "lines seeds"]],
    path: Path,
) -> Path:
    """The learned law against the target, object by object, and the divergence over training."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    law = laws.mean(axis=0)
    ends = [max(min(target.min(), law.min()), 1e-12), max(target.max(), law.max()) * 1.5]
    left.plot(ends, ends, color="0.7", linewidth=1)
    left.scatter(target, np.maximum(law, ends[0]), s=8, alpha=0.5)
    left.set(xscale="log", yscale="log", xlabel="target probability", ylabel="learned probability")
    for metric, label in (("kl", "KL(q || target)"), ("tv", "total variation")):
        if metric in metrics:
            draw_band(right, steps, metrics[metric], label)
    right.set(yscale="log", xlabel="updates", title=f"{laws.shape[0]} seeds")
    right.legend()
    return save(figure, path)


def draw_record(
    steps: Int[np.ndarray, " lines"],
    metrics: Mapping[str, Float[np.ndarray, "lines seeds"]],
    path: Path,
) -> Path:
    """Estimates over training: bounds on log Z, the effective share of samples, and the loss."""
    panels = {
        "estimates of log Z": ("elbo", "log_z", "learned_log_z", "replayed_eubo"),
        "shares and correlations": ("effective_share", "pearson", "spearman"),
        "loss and residuals": ("train_loss", "residual_median", "residual_p90"),
    }
    shown = {title: [n for n in names if n in metrics] for title, names in panels.items()}
    shown = {title: names for title, names in shown.items() if names}
    figure, axes = plt.subplots(
        1, len(shown), figsize=(4.2 * len(shown), 3.6), squeeze=False, layout="constrained"
    )
    for axis, (title, names) in zip(axes.flat, shown.items(), strict=True):
        for name in names:
            known = np.isfinite(metrics[name]).all(axis=1)
            values = metrics[name][known]
            (line,) = axis.plot(steps[known], values.mean(axis=1), label=name, linewidth=1.4)
            if (error := metrics.get(f"{name}_se")) is not None:
                spread = error[known].mean(axis=1)
                middle, colour = values.mean(axis=1), line.get_color()
                axis.fill_between(
                    steps[known], middle - spread, middle + spread, color=colour, alpha=0.2
                )
        axis.set(xlabel="updates", yscale="log" if title.startswith("loss") else "linear")
        axis.set_title(title, fontsize="medium")
        axis.legend(fontsize="small")
    return save(figure, path)


def draw_marginals(marginals: Sequence[Float[np.ndarray, " _values"]], path: Path) -> Path:
    """The probability of each value of each variable: bars of a few, a heat map of many."""
    count, most = len(marginals), max(map(len, marginals))
    table = np.full((most, count), np.nan)
    for variable, probabilities in enumerate(marginals):
        table[: len(probabilities), variable] = probabilities
    figure, axis = plt.subplots(figsize=(9, 3.6), layout="constrained")
    colours = plt.get_cmap("viridis")
    if count <= _BARS and most <= _VALUES:
        ends = np.nancumsum(table, axis=0)
        for value, (heights, end) in enumerate(zip(np.nan_to_num(table), ends, strict=True)):
            colour = colours(value / max(1, most - 1))
            axis.bar(range(count), heights, bottom=end - heights, color=colour, label=str(value))
        axis.set(ylabel="probability", ylim=(0, 1), xticks=range(count))
        axis.legend(title="value", reverse=True, loc="center left", bbox_to_anchor=(1, 0.5))
    else:
        image = axis.imshow(table, aspect="auto", origin="lower", vmin=0, vmax=1, cmap=colours)
        axis.set(ylabel="value")
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
        figure.colorbar(image, ax=axis, label="probability")
    axis.set(xlabel="variable")
    return save(figure, path)


_BARS, _VALUES = 40, 10  # variables, and values of each, that bars can show


def draw_band(
    axis: Axes,
    steps: Sequence[int] | Int[np.ndarray, " lines"],
    values: Float[np.ndarray, "lines seeds"],
    label: str,
    **line: Any,
) -> None:
    """Geometric mean over seeds, with one standard deviation of the logarithm.

    Args:
        axis: to draw on.
        steps: updates made before each line.
        values: of each seed, in any unit.
        label: for the legend.
        line: colour, marker and so on, as matplotlib has them.
    """
    known = ~np.isnan(values).any(axis=1)
    logs = np.log(np.maximum(values[known], 1e-14))
    mean, spread = logs.mean(axis=1), logs.std(axis=1)
    steps = np.asarray(steps)[known]
    (drawn,) = axis.plot(steps, np.exp(mean), **{"label": label, "linewidth": 1.4, **line})
    low, high = np.exp(mean - spread), np.exp(mean + spread)
    axis.fill_between(steps, low, high, alpha=0.2, color=drawn.get_color())


def draw_relative_errors(panels: Mapping[str, tuple[Sequence[Any], str]], path: Path) -> Path:
    r"""$\rho_\lambda$ over training, one line for each value of an attribute of the points."""
    figure, axes = plt.subplots(
        1, len(panels), figsize=(4.4 * len(panels), 3.4), squeeze=False, layout="constrained"
    )
    for axis, (title, (points, attribute)) in zip(axes.flat, panels.items(), strict=True):
        values = sorted({getattr(point, attribute) for point in points})
        for shade, value in enumerate(values):
            line = [point for point in points if getattr(point, attribute) == value]
            rho = np.array([point.rho for point in line])
            colour = plt.get_cmap("viridis")(shade / max(1, len(values) - 0.5))
            steps = [point.step for point in line]
            axis.plot(steps, rho.mean(axis=1), color=colour, label=f"{value:g}", marker=".")
            axis.fill_between(steps, rho.min(axis=1), rho.max(axis=1), color=colour, alpha=0.15)
        axis.axhline(1, color="black", linestyle=":", linewidth=1)
        axis.set(yscale="log", xlabel="updates", ylabel=r"$\rho_\lambda$")
        axis.set_title(title, fontsize="medium")
        axis.legend(fontsize="small")
    return save(figure, path)


def heat_maps(figure: Figure, axes: Any, laws: Mapping[str, np.ndarray], side: int) -> None:
    """Laws over the cells of a square grid, the target first, on one logarithmic colour scale."""
    target = next(iter(laws.values()))
    floor = target.min() / 10
    norm = LogNorm(floor, target.max() * 2)
    for axis, (name, law) in zip(axes, laws.items(), strict=False):
        cells = np.maximum(law.reshape(side, side), floor)
        axis.imshow(cells.T, origin="lower", norm=norm, cmap="viridis")
        axis.set(title=name, xticks=[], yticks=[])
    bar = ScalarMappable(norm, "viridis")
    figure.colorbar(bar, ax=axes, shrink=0.8, label="probability")


def save(figure: Any, path: Path) -> Path:
    """Write a figure as a PNG file, and make its folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path
