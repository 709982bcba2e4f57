"""`natgfn certify`: whether the Fisher of a run on disk can be trusted."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..progress import Progress
from .voice import Voice, plain_table

if TYPE_CHECKING:
    import numpy as np

    from ..training import Run, recertify


def certify_run(folder: Path, out: Path, voice: Voice) -> None:
    """Certify a run at its end and, if it kept snapshots, over its training."""
    import numpy as np

    from ..certify import reference_of
    from ..training import load_setup, recertify, reopen

    opened = reopen(folder, load_setup(folder))
    batch, damping = recertify.own_settings(opened)
    numbers = _certified(opened, voice)
    table = plain_table("number", "mean", "lowest", "highest", "over seeds")
    for name, values in sorted(numbers.items()):
        spread = f"{values.size} seeds" if values.size > 1 else "1 seed"
        cells = (f"{value:.4g}" for value in (values.mean(), values.min(), values.max()))
        table.add_row(name, *cells, spread)
    last, effort = opened.history[-1]["step"], recertify.affordable(opened)
    reference = reference_of(opened.algorithm, opened.flow().forward, effort)
    voice.say(
        f"update {last}, batch {batch}, damping {damping:g}; the reference Fisher is {reference}",
        table,
    )
    if np.isinf(numbers["rho_error"]).any():
        voice.say(f"rho is a lower bound: {effort.iterations} iterations did not find its limit")
    unsolved = [name for name in ("direction_error", "gradient_error") if name not in numbers]
    if unsolved:
        voice.say(
            f"{' and '.join(unsolved)} left out: {effort.iterations} iterations did not solve for "
            "the directions"
        )
    found: dict[str, Any] = {
        "update": last,
        "batch": batch,
        "damping": damping,
        "reference": reference,
        "numbers": {name: values.tolist() for name, values in numbers.items()},
    }
    if opened.certificates:
        found |= _over_training(opened, out, voice)
    else:
        usual = "exact" if opened.setup.enumerate else "sampled"
        watch = f"""'watch=["{usual}", {{name="certificate", every=100}}]'"""
        voice.say(f"to see rho over training as well, train with {watch}")
    voice.tell(found)


def _over_training(opened: "Run", out: Path, voice: Voice) -> dict[str, Any]:
    """Certify the snapshots of a run for other batch sizes and dampings: a table and a picture."""
    from ..training import recertify

    pairs = recertify.grid(opened)
    total = len(pairs) * min(recertify.SNAPSHOTS, len(opened.certificates["step"]))
    points: list[recertify.Point] = []
    with Progress("certifying", total, shown=voice.speaks) as progress:
        for point in recertify.over_training(opened, pairs):
            points.append(point)
            progress.update(len(points))
    table = plain_table("update", *(f"N={n}, {d:g}" for n, d in pairs))
    for step in dict.fromkeys(point.step for point in points):
        table.add_row(str(step), *(_mean_rho(point) for point in points if point.step == step))
    figure = recertify.draw(opened, points, out / "certificates.png")
    voice.say(
        "rho by batch size N and damping (mean over seeds; the guarantee needs rho < 1):",
        table,
        f"figure: {figure}",
    )
    return {"over_training": [point._asdict() for point in points], "figure": str(figure)}


def _certified(opened: "Run", voice: Voice) -> "dict[str, np.ndarray]":
    """The full certificate of a run, with a bar that moves while it is made."""
    from ..training import recertify

    with Progress("certifying", recertify.products(opened), shown=voice.speaks) as progress:
        done = iter(range(1, 2**62))
        return recertify.full(opened, tell=lambda: progress.update(next(done)))


def _mean_rho(point: "recertify.Point") -> str:
    return f"{'>= ' if point.is_bound else ''}{sum(point.rho) / len(point.rho):.3g}"
