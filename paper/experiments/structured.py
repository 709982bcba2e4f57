r"""The structured regime: natural gradients from the structure of the target.

Not in the paper, which describes this regime and runs only the coordinate-factorised grid
(`app:computational_regimes_detailed`). Ising models on a chain, a tree, grids and a torus, a Potts
model, and a Bayesian network with evidence, each assigned variable by variable in an elimination
order reversed. A policy is a table over (variable, values of its separator), over the nearest
`k` variables of that, or a network that reads the separator.

*Residual* methods step on trajectory balance over batches of 128 sampled trajectories, *advantage*
methods on the same trajectories with the exact advantage of each step
(`objectives.AdvantageBalance`), and methods *without noise* draw nothing (`sources.Messages`). A
method with rates has the best of three, on a seed of its own and as many updates; log Z starts at
the ELBO of the uniform policy. Our defaults have no rate. Where a junction tree fits, every number
is exact, by messages; on the torus and on grids of 20 x 20, ELBO and divergence come from 4,096
samples and the exact log Z, by elimination, and the EUBO and the marginals of the latter are judged
by tempered chains, each with its noise: the standard error of the EUBO, and for the worst marginal
what halves of draws and chains differ by.

On the chain and the tree, what is left of the divergence is the rounding of single precision: the
same trainings in double precision, the default's and that of sampled advantages, end within 1e-13
of zero.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float, Int

from natgfn.certify import structured_certificate
from natgfn.envs import Assignment, Assignments
from natgfn.figures import save
from natgfn.metrics import eubo, message_metrics
from natgfn.objectives import AbstractObjective, AdvantageBalance, TrajectoryBalance
from natgfn.occupancy import Beliefs, Sampled, Separators, Truncated
from natgfn.optim import AbstractRule, Adam, Euclidean, Natural, SampleSpace
from natgfn.policies import AbstractDesign, ContextMLP, ContextTable, Flow, Uniform
from natgfn.sources import AbstractSource, Fresh, Messages
from natgfn.training import RECORD, Record, Run, Setup, decide, describe
from natgfn.training import run as train
from natgfn.watch import Messages as WatchMessages
from natgfn.watch import Sampled as WatchSampled

from ..figures import share_legend, style
from ..tables import made_by, table
from .structured_targets import PAPER, SMOKE, Target
from .study import folder_for, steps_done

SWEEP_SEED = 1_000
LOG_Z_RATE = 0.05


@dataclass(frozen=True)
class Method:
    """How to train: a rule for each rate, or one without.

    Attributes:
        rule: from a rate to the rule; None for natgfn's own choice.
        rates: to choose from; none where there is nothing to tune.
        design: of the policy.
        objective: what is minimised.
        source: of trajectories.
        wide: whether it works where no junction tree fits.
        narrow: whether it is run where one does.
    """

    rule: Callable[[float], AbstractRule] | None
    rates: tuple[float, ...] = ()
    design: AbstractDesign = ContextTable()
    objective: AbstractObjective = TrajectoryBalance()
    source: AbstractSource | None = Fresh()
    wide: bool = False
    narrow: bool = True


def _natural(occupancy: Any) -> Callable[[float], AbstractRule]:
    return lambda rate: Natural(occupancy, damping=1e-3, rate=rate, log_z_rate=LOG_Z_RATE)


def _few(size: int, **settings: Any) -> dict[str, Any]:
    return {"design": ContextTable(size), "wide": True, **settings}


_SMALL, _MIDDLE = (3e-3, 1e-2, 3e-2), (3e-2, 1e-1, 3e-1)
_ADAM = (1e-2, 3e-2, 6e-2)
_ADVANTAGE = AdvantageBalance()

METHODS: dict[str, Method] = {
    "Euclidean": Method(lambda r: Euclidean(r, log_z_rate=LOG_Z_RATE), (1.0, 10.0, 50.0)),
    "Adam": Method(Adam, _ADAM),
    "Natural, exact separators": Method(_natural(Separators()), _SMALL),
    "Natural, separators with a floor": Method(_natural(Separators(floor=True)), _SMALL),
    "Natural, sampled": Method(_natural(Sampled()), _SMALL),
    "Sample space": Method(lambda _: SampleSpace()),
    "Adam, advantages": Method(Adam, _ADAM, objective=_ADVANTAGE),
    "Natural, separators with a floor, advantages": Method(
        _natural(Separators(floor=True)), _MIDDLE, objective=_ADVANTAGE
    ),
    "Natural, sampled, advantages": Method(_natural(Sampled()), _MIDDLE, objective=_ADVANTAGE),
    "Adam, without noise": Method(Adam, _ADAM, source=Messages()),
    "Natural, without noise (default)": Method(None, source=None),
    "Adam, 4 variables": Method(Adam, _ADAM, **_few(4)),
    "Natural, truncated to 2": Method(_natural(Truncated()), _SMALL, **_few(2)),
    "Natural, truncated to 4": Method(_natural(Truncated()), _SMALL, **_few(4)),
    "Natural, beliefs on 4": Method(_natural(Beliefs()), _SMALL, **_few(4)),
    "Sample space, 4 variables": Method(lambda _: SampleSpace(), **_few(4)),
    "Sample space (default if wide)": Method(None, wide=True, narrow=False, source=None),
    "Network, Adam": Method(Adam, (1e-3, 3e-3, 1e-2), design=ContextMLP(64)),
    "Network, sample space (default)": Method(
        lambda _: SampleSpace.network(), design=ContextMLP(64)
    ),
}
DEFAULTS = ("Natural, without noise (default)", "Sample space (default if wide)")
LIGHT = (
    *DEFAULTS,
    "Adam",
    "Natural, exact separators",
    "Adam, 4 variables",
    "Sample space, 4 variables",
)
"""What is run on the largest grid that has a junction tree."""


@dataclass(frozen=True)
class Scale:
    """How much to run."""

    targets: dict[str, Target]
    seeds: int
    lines: int = 10
    samples: int = 4_096
    """For estimates, where nothing is exact."""
    sweeps: int = 20_000
    """Of the tempered chain."""


SCALES = {"smoke": Scale(SMOKE, 1, 2, 256, 100), "paper": Scale(PAPER, 2)}


@dataclass
class StructuredStudy:
    """Runs by title: those that were made before, and those made now."""

    scale: Scale
    work: Path
    only: Collection[str]
    runs: dict[str, dict[str, Any]]

    def trial(self, target: str, name: str, rate: float | None, seed: int) -> None:
        """Train, unless that has been done, or it is not wanted now."""
        title = f"{target} | {name} | {rate or 'no rate'} | {_of(seed)}"
        updates = self.scale.targets[target].updates
        folder = folder_for(self.work, title)
        wanted = all(word in title for word in self.only) or steps_done(folder) >= updates
        if title in self.runs or not wanted:
            return
        setup = self.setup(target, METHODS[name], rate, seed, updates)
        done = train(setup, out=folder, resume=True, progress=title)
        about = {"target": target, "method": name, "rate": rate, "seed": seed}
        self.runs[title] = about | self.summary(done, folder, self.scale.targets[target])

    def setup(
        self, target: str, method: Method, rate: float | None, seed: int, updates: int
    ) -> Setup:
        env = self.scale.targets[target].env()
        exact = env.tree is not None and not self.scale.targets[target].chain
        return Setup(
            env,
            None if method.rule is None else method.rule(rate or 0.0),
            policy=None if method.rule is None else method.design,
            objective=method.objective,
            source=method.source,
            updates=updates,
            seed=seed,
            log_z=starting_log_z(env),
            evaluate_every=max(1, updates // self.scale.lines),
            watch=(WatchMessages(),) if exact else (WatchSampled(num=self.scale.samples),),
        )

    def summary(self, done: Run, folder: Path, target: Target) -> dict[str, Any]:
        """What the page needs of a run."""
        metrics = {name: values[:, 0] for name, values in done.metrics.items()}
        names = ("kl", "reverse_kl", "marginal_error", "elbo", "eubo", "path_kl", "effective_share")
        found: dict[str, Any] = {
            "steps": done.steps.tolist(),
            **{n: [float(f"{x:.5g}") for x in metrics[n]] for n in names if n in metrics},
            "rejected": int(metrics["rejected"][-1]),
            "contexts": int(done.flow().forward.contexts.num_rows),  # type: ignore[attr-defined]
            "rule": describe(done.setup.rule),
            "git": Record(folder / RECORD).read()[0]["git"],
        }
        if target.chain:
            found |= self.against_chain(done, target)
        return found

    def against_chain(self, done: Run, target: Target) -> dict[str, Any]:
        """The EUBO and the largest error of a marginal, both by the states of a tempered chain."""
        env, reference = target.env(), target.reference(self.scale.sweeps)
        values = jnp.asarray(reference.states, env.init().values.dtype)
        objects = Assignment(values, jnp.full(len(values), env.max_steps, jnp.int32))
        bound = eubo(env, done.flow(), objects, key=jax.random.key(0))
        drawn = np.asarray(done.sample(16 * self.scale.samples).values)
        error, noise = worst_marginal(drawn, reference.ups)
        return {
            "chain_eubo": bound["eubo"],
            "chain_eubo_noise": bound["eubo_se"],
            "chain_marginal_error": error,
            "chain_marginal_error_noise": noise,
        }

    def methods(self, target: str) -> list[str]:
        """Those that are run on a target."""
        wide = self.scale.targets[target].chain or self.scale.targets[target].env().tree is None
        chosen = [n for n, m in METHODS.items() if (m.wide if wide else m.narrow)]
        return [n for n in chosen if n in LIGHT] if target == "grid 12 x 12" else chosen

    def compare(self, target: str, seeds: int) -> None:
        """Sweeps, then every method at its best rate."""
        for name in self.methods(target):
            for rate in METHODS[name].rates:
                self.trial(target, name, rate, SWEEP_SEED)
            best = self.best(target, name)
            if best is not None or not METHODS[name].rates:
                for seed in range(seeds):
                    self.trial(target, name, best, seed)

    def best(self, target: str, name: str) -> float | None:
        """The rate that ends lowest, once all have been tried."""
        tried = {
            rate: self.runs.get(f"{target} | {name} | {rate} | {_of(SWEEP_SEED)}")
            for rate in METHODS[name].rates
        }
        if not tried or any(entry is None for entry in tried.values()):
            return None
        return min(tried, key=lambda rate: divergence(tried[rate]))  # type: ignore[arg-type]


def _of(seed: int) -> str:
    return "sweep" if seed == SWEEP_SEED else f"seed={seed}"


def starting_log_z(env: Assignments) -> float:
    """The ELBO of the uniform policy; without a tree, if all its assignments are possible."""
    if env.tree is None:
        means = sum(float(np.mean(factor)) for _, factor in env.graph.factors())
        return means + sum(float(np.log(card)) for card in env.graph.cards)
    flow = Flow(ContextTable()(env), Uniform()(env), jnp.array(0.0))
    stacked = jax.tree.map(lambda x: x[None] if isinstance(x, jax.Array) else x, flow)
    return float(message_metrics(env, stacked)["elbo"][0])


def worst_marginal(
    drawn: Int[np.ndarray, "draws variables"], ups: Float[np.ndarray, "chains variables"]
) -> tuple[float, float]:
    """The largest difference of a marginal between draws and chains, and its noise.

    The noise is that of two halves: half of the largest difference between what the first halves
    of draws and chains say of the error, and what the second ones do. An error of this size is what
    equal laws would show.
    """
    first, second = (
        np.mean(a, axis=0) - np.mean(b, axis=0)
        for a, b in zip(np.array_split(drawn, 2), np.array_split(ups, 2), strict=True)
    )
    return float(np.abs(first + second).max() / 2), float(np.abs(first - second).max() / 2)


def divergence(entry: Mapping[str, Any]) -> float:
    """KL(q || p) in the end: exact, or log Z less the ELBO, or the negative ELBO; not NaN."""
    for name in ("kl", "path_kl"):
        if name in entry:
            return float(np.nan_to_num(entry[name][-1], nan=np.inf))
    return -float(np.nan_to_num(entry["elbo"][-1], nan=-np.inf))


def run(
    scale: str,
    seeds: int | None,
    work: Path,
    only: Sequence[str] = (),
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train what is wanted and not yet there; `only` has words of titles, such as `grid 8`."""
    size = SCALES[scale]
    study = StructuredStudy(size, work, only, dict(earlier["runs"]) if earlier else {})
    for target in size.targets:
        if not only or any(word in target or target in word for word in only):
            study.compare(target, seeds or size.seeds)
    return {
        "runs": study.runs,
        "surrogates": surrogates(size),
        "targets": {
            name: about(target) for name, target in size.targets.items() if _has(study, name)
        },
        "claims": claims(study.runs),
    }


def surrogates(scale: Scale, damping: float = 1e-3, size: int = 4) -> list[dict[str, Any]]:
    r"""$\varepsilon_t$, $K_t$, $\Delta_F$ and $\rho_\lambda$ of every surrogate along a training.

    On the first target, of a table that sees few variables, trained without noise.
    """
    env = next(iter(scale.targets.values())).env()
    setup = Setup(
        env,
        Natural(Separators(), damping=damping, rate=0.1, log_z_rate=0.5),
        policy=ContextTable(size),
        source=Messages(),
        log_z=starting_log_z(env),
    )
    kinds = {"truncated": Truncated(), "beliefs": Beliefs()}
    kinds |= {f"sampled, {num:,}": Sampled() for num in (128, 4_096)}
    rows = []
    for updates in (0, 10, 100):
        ran = train(replace(setup, updates=max(updates, 1)), progress=False)
        flow = ran.flow() if updates else decide(setup)[0].flow(0)
        for name, occupancy in kinds.items():
            num = int(name.rpartition(" ")[2].replace(",", "")) if "sampled" in name else 128
            algorithm = replace(ran.algorithm, batch=num, source=Fresh())
            batch = algorithm.draw(flow, jax.random.key(7))
            errors, rho = structured_certificate(env, flow.forward, occupancy, damping, batch)
            rows.append(
                {
                    "updates": updates,
                    "surrogate": name,
                    "epsilon": float(jnp.max(errors.occupancy)),
                    "curvature": float(jnp.max(errors.curvature)),
                    "delta": float(errors.total),
                    "limit": float(errors.relative),
                    "rho": float(rho),
                }
            )
    return rows


def _has(study: StructuredStudy, target: str) -> bool:
    return any(entry["target"] == target for entry in study.runs.values())


def about(target: Target) -> dict[str, Any]:
    env = target.env()
    seen = env.contexts(10**6).seen
    return {
        "variables": env.max_steps,
        "width": max(map(len, seen)),
        "log_z": env.log_z,
        "updates": target.updates,
    }


def finals(runs: Mapping[str, Any], target: str) -> dict[str, list[Mapping[str, Any]]]:
    """The judged runs of a target, by method."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for entry in runs.values():
        if entry["target"] == target and entry["seed"] != SWEEP_SEED:
            found.setdefault(entry["method"], []).append(entry)
    return found


def claims(runs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was promised, and what came out."""
    made = []
    for target in dict.fromkeys(entry["target"] for entry in runs.values()):
        ends = {
            name: float(np.mean([divergence(entry) for entry in entries]))
            for name, entries in finals(runs, target).items()
        }
        own = next((name for name in DEFAULTS if name in ends), None)
        others = {name: value for name, value in ends.items() if name != own}
        if own is not None and others:
            best = min(others, key=others.__getitem__)
            made.append(
                {
                    "target": target,
                    "claim": "the default, without a rate, is within 2x of the best other or ahead",
                    "holds": ends[own] <= 2 * others[best],
                    "evidence": f"{ends[own]:.2e} against {others[best]:.2e} ({best})",
                }
            )
        for ours, factor, other in (
            ("Natural, exact separators", 2.0, "Adam"),
            ("Natural, exact separators", 1.0, "Natural, sampled"),
            ("Natural, separators with a floor, advantages", 2.0, "Adam"),
            ("Natural, separators with a floor, advantages", 1.0, "Natural, sampled, advantages"),
            ("Natural, separators with a floor, advantages", 1.0, "Adam, advantages"),
        ):
            if target in ("grid 8 x 8", "grid 10 x 10") and ours in ends and other in ends:
                times = "" if factor == 1 else f"{factor:g}x "
                made.append(
                    {
                        "target": target,
                        "claim": f"{ours}: {times}below {other}",
                        "holds": factor * ends[ours] <= ends[other],
                        "evidence": f"{ends[ours]:.3g} against {ends[other]:.3g}",
                    }
                )
    return made


def page(results: Mapping[str, Any]) -> str:
    """A table for every target, the claims, and the sweeps."""
    parts = [f"# The structured regime\n\n{results['about']}\n"]
    rows = [
        [c["target"], c["claim"], "yes" if c["holds"] else "**no**", c["evidence"]]
        for c in results["claims"]
    ]
    parts += ["## Claims\n", table(["target", "claim", "holds", "evidence"], rows), ""]
    for name, known in results["targets"].items():
        log_z = "not known" if known["log_z"] is None else f"{known['log_z']:.5f}"
        parts.append(
            f"## {name}\n\n{known['variables']} variables, width {known['width']}, log Z {log_z}; "
            f"{known['updates']:,} updates.\n"
        )
        parts += [_table(finals(results["runs"], name)), ""]
    parts += [_surrogates(results)]
    sweeps = [
        [e["target"], e["method"], f"{e['rate']:g}", f"{divergence(e):.3g}"]
        for e in results["runs"].values()
        if e["seed"] == SWEEP_SEED
    ]
    parts += ["## Sweeps (divergence in the end, on another seed)\n"]
    parts += [table(["target", "method", "rate", "KL(q, p)"], sweeps), "", made_by(results)]
    return "\n".join(parts) + "\n"


def _surrogates(results: Mapping[str, Any]) -> str:
    keys = ("epsilon", "curvature", "delta", "limit", "rho")
    head = ["largest ε_t", "largest K_t", "Δ_F", "bound Δ_F / λ", "relative error", "loose by"]
    rows = [
        [str(r["updates"]), r["surrogate"], *(f"{r[key]:.3g}" for key in keys), _times(r)]
        for r in results["surrogates"]
    ]
    about = (
        "## How far each surrogate can be trusted\n\nOn the first target, a table over the 4 "
        "nearest variables of each separator, trained without noise; damping 1e-3. The bound on "
        "the relative error of the Fisher promises something below 1.\n"
    )
    return "\n".join([about, table(["updates", "surrogate", *head], rows), ""])


def _times(row: Mapping[str, float]) -> str:
    return f"{row['limit'] / row['rho']:.3g}x" if row["rho"] > 0 else ""


COLUMNS = {
    "kl": "KL(q, p)",
    "path_kl": "KL(q, p), sampled",
    "reverse_kl": "KL(p, q)",
    "marginal_error": "worst marginal",
    "elbo": "ELBO",
    "chain_eubo": "EUBO by the chain",
    "chain_marginal_error": "worst marginal by the chain",
    "effective_share": "effective share",
}


def _table(by_method: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    entries = [entry for some in by_method.values() for entry in some]
    shown = [name for name in COLUMNS if any(name in entry for entry in entries)]
    rows = []
    for method, some in by_method.items():
        rate = some[0]["rate"]
        cells = [_cell(name, [entry for entry in some if name in entry]) for name in shown]
        contexts = f"{some[0]['contexts']:,}"
        rows.append(
            [method, "none" if rate is None else f"{rate:g}", contexts, str(len(some)), *cells]
        )
    return table(["method", "rate", "contexts", "seeds", *(COLUMNS[name] for name in shown)], rows)


def _cell(name: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """Mean and spread over seeds, and the noise of each where it is known."""
    if not entries:
        return ""
    values = [v[-1] if isinstance(v := entry[name], list) else v for entry in entries]
    shown = f"{np.mean(values):.4g} ± {np.std(values):.1g}"
    if f"{name}_noise" not in entries[0]:
        return shown
    noise = np.mean([entry[f"{name}_noise"] for entry in entries])
    below = name == "chain_marginal_error" and np.mean(values) <= noise
    return f"below {noise:.2g}" if below else f"{shown} (noise {noise:.1g})"


def figures(results: Mapping[str, Any], out: Path, stem: str) -> list[Path]:
    """The divergence over updates, of every target on which it is exact."""
    shown = {
        target: {
            name: some for name, some in finals(results["runs"], target).items() if "kl" in some[0]
        }
        for target in results["targets"]
    }
    shown = {target: by_method for target, by_method in shown.items() if by_method}
    if not shown:
        return []
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    size = (3.8 * columns + 3.4, max(4.6, 3.2 * rows))
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis, (target, by_method) in zip(axes.flat, shown.items(), strict=False):
        for name, entries in by_method.items():
            values = np.exp(np.mean(np.log([np.maximum(e["kl"], 1e-16) for e in entries]), axis=0))
            line = style(name, len(values))
            axis.plot(entries[0]["steps"], values, label=name, linewidth=1.3, **line)
        axis.set(xlabel="updates", ylabel="KL(q, p), geometric mean", yscale="log")
        axis.set_title(target, fontsize="medium")
    for axis in axes.flat[len(shown) :]:
        axis.axis("off")
    share_legend(figure, axes, "outside right upper", fontsize="x-small")
    return [save(figure, out / f"{stem}.png")]
