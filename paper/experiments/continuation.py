r"""The protocol of the paper's studies of graphs (`app:sachs_dag_details`).

Adam trains a policy. Exact copies of it, of $\log Z$, of the replay buffer and of the random
stream then continue with one rule each. A probe, trajectories drawn once from the copied policy
and never replayed, says how fast each makes progress: the mean Huber loss on it, and the median and
the 90th percentile of $|\delta|$, all relative to the beginning. Their areas under the curve are
means over the updates. In the end fresh samples are compared with a graph and with the exact
posterior.

Runs of the Transformer take hours: after every look they are packed into one small file each
(`paper.checkpoints`), from which they go on where their folders are not at hand. That of a
continuation is removed when it has ended.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int

from natgfn.algorithm import Algorithm, TrainState, of_seed, stack_seeds
from natgfn.dag import Dags, ExactPosterior, SampledPosterior, Transformer, draw, metrics, solve
from natgfn.objectives import TrajectoryBalance, surplus
from natgfn.optim import AbstractRule, Adam, SampleSpace, TrustRegion
from natgfn.policies import AbstractDesign, Flow, Network
from natgfn.sampling import OnPolicy, Trajectories, UniformMixture, log_probs, rollout
from natgfn.solvers import KFAC
from natgfn.sources import Recall
from natgfn.training import (
    RECORD,
    Record,
    Run,
    Setup,
    arrays_in,
    describe,
    has_checkpoint,
    run,
)
from natgfn.watch import AbstractWatcher, Line

from ..checkpoints import pack, unpack
from ..rules import AdaptiveSolve, ControlledAdam, DampedFisher, DecayedAdam, HalfHuber
from .study import folder_for, steps_done

PENALTY = HalfHuber(30.0)
_PROBE, _FINAL = 0x9B0, 0xF14
"""Set the keys of the probe and of the final samples apart from those of training."""


class Case(NamedTuple):
    """A target and what its samplers are compared with."""

    variant: str
    """Of the data, if there are several."""
    seed: int
    """Of the policy and of training."""
    names: tuple[str, ...]
    log_weights: Float[np.ndarray, "d sets"]
    truth: Int[np.ndarray, "d d"]

    def __str__(self) -> str:
        return f"{self.variant} seed={self.seed}".strip()


@dataclass(frozen=True)
class Scale:
    """How much to run."""

    warm_up: int = 4_000
    updates: int = 500
    every: int = 50
    batch: int = 64
    probe: int = 256
    samples: int = 2_000


class Method(NamedTuple):
    """How a copy goes on."""

    rule: AbstractRule
    inherits: bool = False
    """Whether it goes on from Adam's moments."""
    networks: tuple[str, ...] = ("MLP", "Transformer")


WARM_UP = DecayedAdam()
ADAM, CONTROLLED, FISHER = "Adam", "KL-controlled Adam", "Damped Fisher"
METHODS = {
    ADAM: Method(WARM_UP, inherits=True),
    CONTROLLED: Method(ControlledAdam(), inherits=True),
    FISHER: Method(DampedFisher()),
    "Damped K-FAC": Method(DampedFisher(solver=KFAC()), networks=("MLP",)),
    "Natural (sample space)": Method(SampleSpace.network()),
    "Adam, log Z 0.1": Method(Adam(3e-4, log_z_rate=0.1, clip=1.0)),
    "Adam 1e-3, log Z 0.1": Method(Adam(1e-3, log_z_rate=0.1, clip=1.0)),
}
"""The paper's three; its safeguards around K-FAC; our step, which has its own, and moves $\\log Z$
by Adam at 0.1; and Adam with $\\log Z$ moved as fast, to tell what comes from that alone."""

NETWORKS: dict[str, AbstractDesign] = {"MLP": Network(128, 2), "Transformer": Transformer()}
"""A small network, and the paper's."""
PACKED = ("Transformer",)
"""Networks whose runs are packed."""


class Trial(NamedTuple):
    """One continuation."""

    network: str
    case: str
    method: str

    def __str__(self) -> str:
        return " ".join(self)


@dataclass
class Continuation:
    """All trials: those that were made before, and those made now."""

    scale: Scale
    work: Path
    only: Collection[str]
    checkpoints: Path | None = None
    """Where runs are packed."""
    runs: dict[Trial, dict[str, Any]] = field(default_factory=dict)

    def compare(self, network: str, case: Case, exact: ExactPosterior) -> None:
        """Every method from one checkpoint, unless it is there, or not wanted now."""
        trials = {
            Trial(network, str(case), name): method
            for name, method in METHODS.items()
            if network in method.networks
        }
        last = self.scale.warm_up + self.scale.updates
        wanted = {
            trial: method
            for trial, method in trials.items()
            if trial not in self.runs
            and (
                steps_done(folder_for(self.work, str(trial))) >= last
                or all(word in str(trial) for word in self.only)
            )
        }
        if not wanted:
            return
        env = Dags(self.trained_on(network, case))
        warm = self.warm_up(network, case, env)
        probe = draw_probe(env, of_seed(warm.flow, 0), self.scale.probe, case.seed)
        for trial, method in wanted.items():
            self.runs[trial] = self.go_on(trial, method, case, exact, env, warm, probe)

    def warm_up(self, network: str, case: Case, env: Dags) -> TrainState:
        """The state that all methods start from."""
        setup = self.setup(network, case, env, WARM_UP, self.scale.warm_up)
        return self.run(network, _warm_up(network, case), setup).state

    def trained_on(self, network: str, case: Case) -> Float[np.ndarray, "d sets"]:
        """The log-weights of a case, to the bit as its packed warm-up has them.

        Another processor may round them another way, and a run goes on only with its own.
        """
        folder = folder_for(self.work, _warm_up(network, case))
        self.restore(network, folder)
        for kept in arrays_in(folder).values():
            if kept.shape == case.log_weights.shape and np.allclose(kept, case.log_weights):
                return kept
        return case.log_weights

    def packed(self, network: str, folder: Path) -> Path | None:
        """Where the run in a folder is packed, if it is."""
        if self.checkpoints is None or network not in PACKED:
            return None
        return self.checkpoints / f"{self.work.name}.{folder.name}.zip"

    def restore(self, network: str, folder: Path) -> None:
        """Unpack a run whose folder is not there."""
        packed = self.packed(network, folder)
        if packed is not None and packed.exists() and not has_checkpoint(folder):
            unpack(packed, folder)

    def run(self, network: str, title: str, setup: Setup, start: TrainState | None = None) -> Run:
        """Run, or go on; a run to be packed is packed after every look."""
        folder = folder_for(self.work, title)
        self.restore(network, folder)
        packed = self.packed(network, folder)
        log = None if packed is None else lambda _: pack(folder, packed)
        return run(setup, start=start, out=folder, resume=True, progress=title, log=log)

    def go_on(
        self,
        trial: Trial,
        method: Method,
        case: Case,
        exact: ExactPosterior,
        env: Dags,
        warm: TrainState,
        probe: Trajectories,
    ) -> dict[str, Any]:
        """Continue with one method; what the page needs of it."""
        out, last = folder_for(self.work, str(trial)), self.scale.warm_up + self.scale.updates
        setup = self.setup(trial.network, case, env, method.rule, last, (Probe(paths=probe),))
        done = self.run(trial.network, str(trial), setup, branch(warm, method))
        if packed := self.packed(trial.network, out):
            packed.unlink(missing_ok=True)
        states, history = done.state, done.history
        flow = of_seed(states.flow, 0)
        draws = draw(env, flow, self.scale.samples, seed=case.seed + _FINAL)
        found = SampledPosterior(case.names, env, (flow,), draws)
        marginals = found.edge_marginals.to_numpy()
        curves = {name: [float(f"{line[name]:.6g}") for line in history] for name in CURVES}
        return {
            **trial._asdict(),
            "variant": case.variant,
            "seed": case.seed,
            "rule": describe(method.rule),
            "steps": [line["step"] - self.scale.warm_up for line in history],
            **curves,
            **_safeguards(history),
            "seconds_an_update": history[-1]["seconds"] / self.scale.updates,
            "final": structure(marginals, case.truth) | found.errors(exact),
            "marginals": marginals.round(4).tolist(),
            "git": Record(out / RECORD).read()[0]["git"],
        }

    def setup(
        self,
        network: str,
        case: Case,
        env: Dags,
        rule: AbstractRule,
        updates: int,
        watch: tuple[AbstractWatcher, ...] = (),
    ) -> Setup:
        return Setup(
            env,
            rule,
            policy=NETWORKS[network],
            objective=TrajectoryBalance(PENALTY),
            proposal=UniformMixture(0.2),
            source=Recall(),
            batch=self.scale.batch,
            updates=updates,
            seed=case.seed,
            enumerate=False,
            evaluate_every=self.scale.every,
            watch=watch,
        )


def _warm_up(network: str, case: Case) -> str:
    """The title of the run that all methods start from."""
    return f"{network} {case} warm-up"


def branch(warm: TrainState, method: Method) -> TrainState:
    """An exact copy of a state, but for the optimiser's part of it, which is the method's own."""

    def copy(_: int) -> TrainState:
        state = of_seed(warm, 0)
        own: Any = method.rule.transform().init(eqx.filter(state.flow, eqx.is_inexact_array))
        if method.inherits:
            own["forward"] = (state.optimiser["forward"][0], *own["forward"][1:])
        return eqx.tree_at(lambda s: s.optimiser, state, own)

    return stack_seeds(copy, [0])


@eqx.filter_jit
def draw_probe(env: Dags, flow: Flow, count: int, seed: int) -> Trajectories:
    """Trajectories of the policy itself, from a random stream of their own."""
    key = jax.random.fold_in(jax.random.key(seed), _PROBE)
    return rollout(env, flow.forward, OnPolicy(), count, key=key)


@eqx.filter_jit
def residuals(env: Dags, flow: Flow, paths: Trajectories) -> Float[Array, " n"]:
    """`eq:dag_tb_residual`."""
    return flow.log_z + surplus(env, paths, log_probs(env, flow, paths))


CURVES = ("loss", "median", "p90")


class Probe(AbstractWatcher):
    """The loss and the residuals on fixed trajectories, and what the safeguards of the last step
    did.

    Attributes:
        paths: the trajectories.
        every: updates from one look to the next.
    """

    every: int | None = None
    paths: Trajectories = eqx.field(kw_only=True)

    def __call__(self, algorithm: Algorithm, states: TrainState) -> Line:
        env = algorithm.env
        assert isinstance(env, Dags)
        found = residuals(env, of_seed(states.flow, 0), self.paths)
        size = np.abs(np.asarray(found, np.float64))
        curves = (jax.vmap(PENALTY)(found).mean(), np.median(size), np.quantile(size, 0.9))
        line: Line = dict(zip(CURVES, map(float, curves), strict=True))
        kinds = (AdaptiveSolve, TrustRegion)
        for part in jax.tree.leaves(states.optimiser, is_leaf=lambda x: isinstance(x, kinds)):
            if isinstance(part, AdaptiveSolve):
                line |= {"damping": float(part.damping[0]), "cg": float(part.solver.residual[0])}
            if isinstance(part, TrustRegion):
                line |= {"divergence": float(part.divergence[0]), "refused": int(part.refused[0])}
        return line


def _safeguards(history: list[Line]) -> dict[str, Any]:
    """Updates not taken, and typical values of what the last ones were subject to."""
    found: dict[str, Any] = {"rejected": sum(history[-1]["rejected"])}
    found["refused"] = history[-1].get("refused", 0)
    for name in ("cg", "divergence", "damping"):
        if name in history[-1]:
            found[name] = float(np.median([line[name] for line in history[1:]]))
    return found


def structure(
    marginals: Float[np.ndarray, "d d"], truth: Int[np.ndarray, "d d"]
) -> dict[str, float]:
    """How a law of graphs compares with one graph."""
    return {
        "shd": metrics.expected_shd(marginals, truth),
        "shd_once": metrics.expected_shd_reversal_once(marginals, truth),
        "auprc": metrics.directed_auprc(marginals, truth),
        "auroc": metrics.directed_auroc(marginals, truth),
        "skeleton_auprc": metrics.skeleton_auprc(marginals, truth),
        "skeleton_auroc": metrics.skeleton_auroc(marginals, truth),
        "edges": metrics.expected_edges(marginals),
    }


def run_all(
    cases: Sequence[Case],
    scale: Scale,
    work: Path,
    only: Collection[str],
    earlier: Mapping[str, Any] | None,
    checkpoints: Path,
) -> dict[str, Any]:
    """Train what is wanted and not yet there, the small network first.

    Args:
        cases: what to sample.
        scale: how much to run.
        work: where runs are kept.
        only: words that the title of a run must have to be trained now, such as `MLP` or
            `seed=2001`; finished runs are collected in any case.
        earlier: results to merge with.
        checkpoints: where runs of the Transformer are packed.
    """
    found = Continuation(scale, work, only, checkpoints)
    for entry in earlier["runs"] if earlier else ():
        found.runs[Trial(*(entry[name] for name in Trial._fields))] = entry
    exact = {str(case): solve(case.log_weights, case.names) for case in cases}
    for network in NETWORKS:
        for case in cases:
            found.compare(network, case, exact[str(case)])
    return {
        "scale_of_runs": asdict(scale),
        "cases": [_describe(case, exact[str(case)]) for case in cases],
        "runs": list(found.runs.values()),
        "checkpoints": sorted(path.name for path in checkpoints.glob(f"{work.name}.*.zip")),
    }


def _describe(case: Case, exact: ExactPosterior) -> dict[str, Any]:
    marginals = exact.edge_marginals.to_numpy()
    return {
        "variant": case.variant,
        "seed": case.seed,
        "names": list(case.names),
        "truth": case.truth.tolist(),
        "log_z": exact.log_z,
        "expected_log_reward": exact.expected_log_reward,
        "final": structure(marginals, case.truth),
        "marginals": marginals.round(4).tolist(),
    }
