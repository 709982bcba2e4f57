"""Every statement of the paper checked on random instances, and its theorem at work in training.

Statements are checked in float64. A slack is relative to the larger side: the smallest over the
instances shows how close a bound comes to being attained, and the last column has an
instance made for that. For identities the largest relative error is given instead.

The first figure sets the true direction error of the surrogates of a half-trained hypergrid sampler
beside what the theorem allows at their relative error. The second follows the relative error of
a network's sampled Fisher through training on the deceptive grid, with the exact Fisher as
reference.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from rich.progress import track

from natgfn.certify import Bound
from natgfn.envs import DeceptiveGrid, Hypergrid
from natgfn.errors import NatgfnError
from natgfn.figures import draw_relative_errors
from natgfn.occupancy import Factorised, Sampled
from natgfn.optim import Adam
from natgfn.policies import Flow, Network, Uniform
from natgfn.sampling import AbstractProposal, OnPolicy, UniformMixture
from natgfn.training import describe, recertify, train
from natgfn.watch import Certificate, Exact

from ..figures import draw_direction_errors
from ..statements import STATEMENTS, Statement
from ..tables import made_by, table
from ..theory.consistency import direction_errors, measured_rate


@dataclass(frozen=True)
class Scale:
    """How much to run."""

    every: int
    """Each so many of the statements are checked; the paper's scale has them all."""
    instances: int
    draws: int
    """Batches for each surrogate of the hypergrid."""
    sizes: tuple[int, ...]
    """Trajectories of a sampled surrogate."""
    grid: DeceptiveGrid
    updates: int
    seeds: int
    pairs: tuple[tuple[int, float], ...] | None = None
    """Batch sizes and dampings at which the network is certified, if not the usual ones."""


SCALES = {
    "smoke": Scale(
        14, 20, 4, (16, 64), DeceptiveGrid(side=8), 60, 1, pairs=((16, 1e-3), (16, 1e-1))
    ),
    "paper": Scale(
        every=1,
        instances=1_000,
        draws=32,
        sizes=(16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
        grid=DeceptiveGrid(side=32),
        updates=3_000,
        seeds=3,
    ),
}

HYPERGRID = Hypergrid(side=8)
HALF_TRAINED = 200
"""Updates of the default rule before the hypergrid's surrogates are examined."""
DAMPINGS = (1e-3, 1e-2, 1e-1)
PROPOSALS: dict[str, AbstractProposal] = {
    "on-policy": OnPolicy(),
    "importance-weighted": UniformMixture(0.3),
}


def run(
    scale: str,
    seeds: int | None,
    work: Path,
    only: Sequence[str] = (),
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All numbers of the page.

    Args:
        scale: a key of `SCALES`.
        seeds: how many seeds, if not those of the scale.
        work: the folder for runs.
        only: words that the name of a part must have to be made now: `statements`,
            `surrogates` or `network`.
        earlier: results to keep the other parts of.
    """
    size, seeds = SCALES[scale], seeds or SCALES[scale].seeds
    configuration = {
        "instances": size.instances,
        "hypergrid": describe(HYPERGRID),
        "updates before": HALF_TRAINED,
        "grid": describe(size.grid),
        "updates": size.updates,
        "seeds": seeds,
    }
    parts: dict[str, Callable[[], Any]] = {
        "statements": lambda: statements(size),
        "surrogates": lambda: surrogates(size),
        "network": lambda: network(size, seeds, work),
    }
    old = [name for name in parts if not all(word in name for word in only)]
    if old and (earlier is None or _as_of_now(earlier["configuration"]) != configuration):
        raise NatgfnError(
            f"no earlier results of this configuration to keep {', '.join(old)} of: "
            "leave out --only"
        )
    found: dict[str, Any] = {"configuration": configuration}
    for name, make in parts.items():
        found[name] = earlier[name] if earlier is not None and name in old else make()
    return found | {"rates": convergence(found["surrogates"])}


def _as_of_now(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with the fields that its environments have now, at their defaults."""

    def again(make: Callable[..., Any], told: Mapping[str, Any]) -> dict[str, Any]:
        return describe(make(**{name: told[name] for name in told if name != "name"}))

    return {
        **configuration,
        "hypergrid": again(Hypergrid, configuration["hypergrid"]),
        "grid": again(DeceptiveGrid, configuration["grid"]),
    }


def statements(size: Scale) -> list[dict[str, Any]]:
    """The rows of the table of statements."""
    chosen = STATEMENTS[:: size.every]
    return [check(statement, size.instances) for statement in track(chosen, "statements")]


def check(statement: Statement, instances: int) -> dict[str, Any]:
    """One row of the table."""
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), instances)
        # One by one: a batch of a thousand factorisations has locked up XLA's few threads.
        evidence = jax.jit(lambda keys: jax.lax.map(statement.check, keys))(keys)
        held = int(jax.vmap(lambda e: e.holds(statement.rounding))(evidence).sum())
        is_bound = isinstance(evidence, Bound)
        if is_bound:
            worst = float(jax.vmap(lambda e: e.slack)(evidence).min())
        else:
            worst = float(jax.vmap(lambda e: e.error)(evidence).max())
        tight = None if statement.tight is None else float(jax.jit(statement.tight)().slack)
    return {
        "label": statement.label,
        "claim": statement.claim,
        "kind": "bound" if is_bound else "identity",
        "instances": instances,
        "held": held,
        "worst": worst,
        "tight": tight,
    }


def surrogates(size: Scale) -> list[dict[str, Any]]:
    """Direction errors on the hypergrid against rho."""
    trained = train(HYPERGRID, updates=HALF_TRAINED, progress="half-trained hypergrid")
    flow, space = trained.flow(0), trained.space
    points = []
    with jax.enable_x64(True):
        flow = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), float), flow)
        flow = Flow(flow.forward, Uniform().backward(space), flow.log_z)
        for damping in track(DAMPINGS, "hypergrid surrogates"):
            kinds = [("sampled", Sampled(), n) for n in size.sizes]
            for kind, occupancy, count in [*kinds, ("factorised", Factorised(), 16)]:
                draws = size.draws if kind == "sampled" else 1
                for law, proposal in PROPOSALS.items() if kind == "sampled" else [("", OnPolicy())]:
                    found = direction_errors(
                        space,
                        flow,
                        count,
                        draws,
                        jnp.asarray(damping),
                        key=jax.random.key(count),
                        occupancy=occupancy,
                        proposal=proposal,
                    )
                    named = {"surrogate": kind, "law": law, "size": count, "damping": damping}
                    numbers = {k: np.asarray(v).tolist() for k, v in found._asdict().items()}
                    points.append({**named, **numbers})
    return points


def convergence(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How fast the errors of sampled surrogates fall, for each damping and law."""
    rates = []
    for damping, law in product(DAMPINGS, PROPOSALS):
        chosen = [p for p in points if (p["damping"], p["law"]) == (damping, law)]
        with jax.enable_x64(True):
            sizes = jnp.array([p["size"] for p in chosen], float)
            slopes = {
                name: float(measured_rate(sizes, jnp.array([np.mean(p[name]) for p in chosen])))
                for name in ("rho", "fisher", "total")
            }
        rates.append({"law": law, "damping": damping, **slopes})
    return rates


def network(size: Scale, seeds: int, work: Path) -> dict[str, Any]:
    """A network trained by Adam, certified again at snapshots of its training."""
    done = train(
        size.grid,
        Adam(3e-3),
        policy=Network(),
        batch=16,
        updates=size.updates,
        seeds=seeds,
        watch=(Exact(), Certificate(size.updates // 8)),
        out=work / "network",
        resume=True,
        progress="network",
    )
    pairs = size.pairs or recertify.grid(done)
    total = len(pairs) * len(done.certificates["step"])
    points = list(track(recertify.over_training(done, pairs), "certifying", total=total))
    full = {name: values.tolist() for name, values in recertify.full(done).items()}
    batch, damping = recertify.own_settings(done)
    tv = done.metrics["tv"][-1].tolist()
    return {
        "batch": batch,
        "damping": damping,
        "parameters": ravel_pytree(eqx.filter(done.flow(0).forward, eqx.is_inexact_array))[0].size,
        "tv": tv,
        "final": full,
        "points": [point._asdict() for point in points],
    }


def paper_claims(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every statement of the theory."""
    return [
        {
            "setting": {"instances": row["instances"]},
            "claim": f"`{row['label']}`: {row['claim']}",
            "holds": row["held"] == row["instances"],
            "evidence": f"held on {row['held']} of {row['instances']}, worst {row['worst']:.3g}",
        }
        for row in results["statements"]
    ]


def page(results: dict[str, Any]) -> str:
    """The Markdown page."""
    rows = [
        [
            f"`{row['label']}`",
            row["claim"],
            f"{row['held']}/{row['instances']}",
            f"slack {row['worst']:.2g}" if row["kind"] == "bound" else f"error {row['worst']:.1e}",
            "" if row["tight"] is None else f"{row['tight']:.1e}",
        ]
        for row in results["statements"]
    ]
    rates = [
        [r["law"], f"{r['damping']:g}", *(f"{r[k]:.3f}" for k in ("rho", "fisher", "total"))]
        for r in results["rates"]
    ]
    net = results["network"]
    final = [
        [name, ", ".join(f"{value:.4g}" for value in values)]
        for name, values in sorted(net["final"].items())
    ]
    held = sum(row["held"] == row["instances"] for row in results["statements"])
    sections = [
        f"# certificates, {results['scale']} scale",
        results["about"],
        made_by(results),
        f"{held} of {len(rows)} statements hold on all their instances.",
        table(["label", "what was checked", "held", "worst", "slack made for it"], rows),
        "## Consistency (`prop:appendix_mc_regime`)",
        "Slope of the logarithm of the mean error in the logarithm of the number of trajectories; "
        "-1/2 is the rate of a central limit theorem. Errors: relative Fisher error, direction "
        "with the exact gradient, direction with the gradient of the batch.",
        table(["law", "damping", "rho", "direction", "with gradient"], rates),
        "## A network in training",
        f"{net['parameters']:,} parameters, batch {net['batch']}, damping {net['damping']:g}; "
        f"total variation at the end {', '.join(f'{tv:.3f}' for tv in net['tv'])}. The certificate "
        "at the end of training, one number a seed; the reference Fisher is exact:",
        table(["number", "seeds"], final),
    ]
    return "\n\n".join(sections) + "\n"


def figures(results: dict[str, Any], out: Path, stem: str) -> list[Path]:
    """Direction error and bound against rho; rho over training."""
    net = results["network"]
    points = [recertify.Point(**point) for point in net["points"]]
    return [
        draw_direction_errors(results["surrogates"], out / f"{stem}.direction.png"),
        draw_relative_errors(
            recertify.panels(points, net["batch"], net["damping"]), out / f"{stem}.training.png"
        ),
    ]
