"""The first thing to run: natural against Euclidean on the 8 x 8 hypergrid."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm
from rich.console import Console
from rich.table import Table

from ..envs import Hypergrid
from ..optim import Euclidean, SampleSpace
from ..report.figures import draw_band, save
from ..statespace import enumerate_states
from ..train import Run, train

SIDE, UPDATES, SEEDS = 8, 1_000, 3


def run_demo(out: Path) -> Path:
    """Train both, print a table, draw a picture; return where the picture is."""
    console = Console()
    space = enumerate_states(Hypergrid(side=SIDE))
    console.print(
        f"An {SIDE} x {SIDE} grid: move right, move up, or stop. Four corners of it hold nearly all "
        f"of the reward.\nTwo samplers learn to stop where the reward is, {SEEDS} seeds each.\n"
    )
    rules = {
        "Euclidean, rate 1 (its best)": Euclidean(1.0),
        "Natural, nothing to tune": SampleSpace(),
    }
    runs = {
        name: train(space, rule, updates=UPDATES, seeds=SEEDS, progress=name)
        for name, rule in rules.items()
    }

    table = Table("sampler", "KL from target", "total variation", "modes found", "seconds")
    for name, run in runs.items():
        kl, tv, modes = (run.metrics[metric][-1].mean() for metric in ("kl", "tv", "modes"))
        seconds = run.history[-1]["seconds"]
        table.add_row(name, f"{kl:.1e}", f"{tv:.1e}", f"{modes:.1f} of 4", f"{seconds:.1f}")
    console.print(table)
    path = draw(runs, out / "demo.png")
    console.print(
        f"\nThe picture is [bold]{path}[/bold]. Next:\n"
        "  natgfn train env.name=triangles env.nodes=5 updates=1000   another target, your settings\n"
        "  natgfn list                                                everything there is to choose from\n"
        "  python examples/own_environment.py                         your own problem, in a page of code"
    )
    return path


def draw(runs: dict[str, Run], path: Path) -> Path:
    """Target and learned laws as heat maps, and the divergence over training."""
    figure, axes = plt.subplots(
        1,
        2 + len(runs),
        figsize=(13, 3.4),
        width_ratios=[1] * (1 + len(runs)) + [1.5],
        layout="constrained",
    )
    space = next(iter(runs.values())).space
    target = np.exp(space.log_target)
    laws = {"Target": target, **{name: run.laws.mean(axis=0) for name, run in runs.items()}}
    norm = LogNorm(target.min() / 10, target.max() * 2)
    for axis, (name, law) in zip(axes, laws.items(), strict=False):
        cells = np.empty((SIDE, SIDE))
        cells[tuple(space.terminals.cell.T)] = np.maximum(law, norm.vmin)
        image = axis.imshow(cells.T, origin="lower", norm=norm)
        axis.set(title=name, xticks=[], yticks=[])
    figure.colorbar(image, ax=axes[: len(laws)], shrink=0.8, label="probability")
    for name, run in runs.items():
        draw_band(axes[-1], run.steps.tolist(), run.metrics["kl"], name)
    axes[-1].set(yscale="log", xlabel="updates", title="KL(learned || target)")
    axes[-1].legend(fontsize="small")
    return save(figure, path)
