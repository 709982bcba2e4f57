"""The first thing to run: natural against Euclidean on the 8 x 8 hypergrid."""

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..envs import Hypergrid
from ..errors import MissingExtra
from ..optim import Euclidean, SampleSpace
from ..statespace import enumerate_states
from ..training import Run, train

SIDE, SEEDS = 8, 3


def run_demo(out: Path, updates: int = 1_000) -> Path:
    """Train both, print a table, draw a picture if matplotlib is there; return where it is."""
    console = Console()
    space = enumerate_states(Hypergrid(side=SIDE))
    console.print(
        f"An {SIDE} x {SIDE} grid: move right, move up, or stop. Four cells hold nearly all of the "
        f"reward.\nTwo samplers learn to stop in proportion to it, {SEEDS} seeds each.\n"
    )
    rules = {
        "Euclidean, rate 1 (its best)": Euclidean(1.0),
        "Natural, nothing to tune": SampleSpace(),
    }
    runs = {
        name: train(space, rule, updates=updates, seeds=SEEDS, progress=name)
        for name, rule in rules.items()
    }

    table = Table("sampler", "KL from target", "total variation", "modes found", "seconds")
    for name, run in runs.items():
        kl, tv, modes = (run.metrics[metric][-1].mean() for metric in ("kl", "tv", "modes"))
        seconds = run.history[-1]["seconds"]
        table.add_row(name, f"{kl:.1e}", f"{tv:.1e}", f"{modes:.1f} of 4", f"{seconds:.1f}")
    console.print(table)
    path = out / "demo.png"
    try:
        console.print(f"\nThe picture is [bold]{draw(runs, path)}[/bold].", end=" ")
    except MissingExtra as error:
        console.print(Text(f"\nno picture: {error}"))
    console.print("Next, after `source .venv/bin/activate`:")
    console.print("  natgfn train env.name=triangles env.nodes=5    another target, your settings")
    console.print("  natgfn list                                    all there is to choose from")
    console.print("  python examples/own_environment.py             your own problem, on a page")
    return path


def draw(runs: dict[str, Run], path: Path) -> Path:
    """Target and learned laws as heat maps, and the divergence over training."""
    from ..figures import draw_band, heat_maps, plt, save  # after training: it takes long

    figure, axes = plt.subplots(
        1,
        2 + len(runs),
        figsize=(13, 3.4),
        width_ratios=[1] * (1 + len(runs)) + [1.5],
        layout="constrained",
    )
    target = np.exp(next(iter(runs.values())).space.log_target)
    laws = {"Target": target, **{name: run.laws.mean(axis=0) for name, run in runs.items()}}
    heat_maps(figure, axes[:-1], laws, SIDE)
    for name, run in runs.items():
        draw_band(axes[-1], run.steps.tolist(), run.metrics["kl"], name)
    axes[-1].set(yscale="log", xlabel="updates", title="KL(learned || target)")
    axes[-1].legend(fontsize="small")
    return save(figure, path)
