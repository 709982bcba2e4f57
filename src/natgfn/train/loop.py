"""The training loop: compiled chunks, and everything a person sees between them."""

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..envs.base import AbstractEnv
from ..errors import NatgfnError
from ..metrics import evaluate
from ..objectives import AbstractObjective, TrajectoryBalance
from ..optim import AbstractRule, SampleSpace
from ..policies import AbstractDesign, AbstractPolicy, Flow, Table, Uniform
from ..sampling import AbstractProposal, OnPolicy, Weighting
from ..statespace import StateSpace, enumerate_states, require_space
from . import checkpoint
from .algorithm import Algorithm, TrainState, advance, stack_seeds
from .record import Record, describe
from .run import CERTIFICATE, Run
from .sources import AbstractSource, Fresh

RECORD, CHECKPOINT = "record.jsonl", "checkpoint.npz"


def snapshot(folder: Path, step: int) -> Path:
    """The state of a run at a certificate, kept for `natgfn certify`."""
    return folder / "snapshots" / f"{step:08d}.npz"


def train(
    env: AbstractEnv,
    rule: AbstractRule = SampleSpace(),
    *,
    policy: AbstractDesign = Table(),
    objective: AbstractObjective = TrajectoryBalance(),
    backward: Callable[[StateSpace], AbstractPolicy] = Uniform.backward,
    proposal: AbstractProposal = OnPolicy(),
    source: AbstractSource = Fresh(),
    reference: AbstractProposal | None = None,
    weighting: Weighting = Weighting(),
    batch: int = 128,
    updates: int = 1_000,
    seeds: int = 1,
    seed: int = 0,
    evaluate_every: int | None = None,
    certify_every: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | str = True,
) -> Run:
    r"""Train a GFlowNet to sample objects of `env` in proportion to their reward.

    Args:
        env: the environment; it is enumerated first, and must be small enough for that.
        rule: how a batch becomes an update; by default the natural step in sample space,
            `optim.SampleSpace`; as it is, it becomes `optim.SampleSpace.network()` for a network.
        policy: the forward policy, a table (`policies.Table`) or a network (`policies.Network`).
        objective: trajectory balance with squared residuals, unless told otherwise; or any of
            `natgfn.objectives`.
        backward: makes the backward policy: `Uniform.backward` over the parents,
            `Tabular.backward` to learn it, `PathCount.backward`, or, to see what it does,
            `Constant.backward`, which is not normalised.
        proposal: $\mu$, which draws new trajectories; the forward policy itself by default.
        source: where the trajectories of an update come from: always new ones (`Fresh`), or
            every other time from a buffer of objects (`Replay`), a batch of each (`Mixed`), a
            `Teacher`, or half of them from an explorer (`ACE`); any of them with noise in the
            policy's parameters (`Perturbed`).
        reference: $\nu$, the law the objective averages over; by default the proposal.
        weighting: clipping and self-normalisation of the weights between those laws.
        batch: trajectories an update.
        updates: how many updates.
        seeds: how many runs, one after the other.
        seed: the seed of the first; the others follow.
        evaluate_every: updates between evaluations, fifty of them in all by default.
        certify_every: updates between certificates (`natgfn.certify.certificate`), if any; each
            takes the time of some twenty updates, and changes nothing in the run.
        out: a folder for the record and the checkpoint; nothing is written without it.
        resume: go on from the checkpoint in `out`, if there is one.
        progress: whether to show a progress bar, or the title to give it.

    Raises:
        ValueError: an argument or the environment is unusable; the message says why.
        NatgfnError: the folder is.
    """
    job = _prepare(
        env=env,
        rule=rule,
        policy=policy,
        objective=objective,
        backward=backward,
        proposal=proposal,
        source=source,
        reference=reference,
        weighting=weighting,
        batch=batch,
        updates=updates,
        seeds=seeds,
        seed=seed,
        evaluate_every=evaluate_every,
        certify_every=certify_every,
    )
    states, history = follow(
        lambda _: job.algorithm,
        job.states,
        partial(_look, job),
        job.configuration,
        updates=updates,
        every=(job.configuration["evaluate_every"], *filter(None, [certify_every])),
        note=_note,
        out=None if out is None else Path(out),
        resume=resume,
        progress=progress,
    )
    return job.run(states, history, None if out is None else Path(out))


Line = dict[str, Any]
"""Of a record: `step` and `seconds`, and whatever was looked at."""


def follow(
    algorithm: Callable[[int], Algorithm],
    states: TrainState,
    look: Callable[[TrainState, Float[np.ndarray, " seeds"] | None], Line],
    configuration: dict[str, Any],
    *,
    updates: int,
    every: Sequence[int],
    note: Callable[[Line], str],
    out: Path | None = None,
    resume: bool = False,
    progress: bool | str = True,
) -> tuple[TrainState, list[Line]]:
    """Go on from `states` until `updates` have been made in all, and look every now and then.

    Args:
        algorithm: what makes the updates from a step on, until the next look.
        states: where to start, unless there is a checkpoint to resume from.
        look: a line of the record, from states and the mean losses since the last look.
        configuration: what a checkpoint must have been made with.
        updates: the step to stop at.
        every: updates from one look to the next; where there are several, one at all of them.
        note: what the progress bar says of a line.
        out: a folder for the record and the checkpoint; nothing is written without it.
        resume: go on from the checkpoint in `out`, if there is one.
        progress: whether to show a progress bar, or the title to give it.
    """
    keeper = _Keeper(out, configuration) if out is not None else None
    history: list[Line] = []
    if keeper is not None:
        states, history = keeper.open(states, resume)

    def see(losses: Float[np.ndarray, " seeds"] | None, seconds: float) -> None:
        start = {"step": int(states.step[0]), "seconds": round(seconds, 3)}
        history.append(start | look(states, losses))
        if keeper is not None:
            keeper.keep(states, history[-1])

    with progress_bar(progress) as bar:
        title = progress if isinstance(progress, str) else "training"
        task = bar.add_task(title, total=updates, note="")
        if not history:
            see(None, 0.0)
        started, before = time.perf_counter(), history[-1]["seconds"]
        while (done := history[-1]["step"]) < updates:
            bar.update(task, completed=done, note=note(history[-1]))
            count = min(updates - done, *(interval - done % interval for interval in every))
            states, losses = advance(algorithm(done), states, jnp.array(count))
            losses = np.asarray(losses)
            see(losses, before + time.perf_counter() - started)
        bar.update(task, completed=updates, note=note(history[-1]))
    return states, history


@dataclass(frozen=True)
class _Job:
    """A run before its first update."""

    algorithm: Algorithm
    states: TrainState
    configuration: dict[str, Any]

    @property
    def space(self) -> StateSpace:
        return require_space(self.algorithm.env, "training")

    def run(self, states: TrainState, history: list[Line], out: Path | None) -> Run:
        return Run(self.space, self.algorithm, states, history, self.configuration, out)


def _prepare(
    *,
    env: AbstractEnv,
    rule: AbstractRule,
    policy: AbstractDesign,
    objective: AbstractObjective,
    backward: Callable[[StateSpace], AbstractPolicy],
    proposal: AbstractProposal,
    source: AbstractSource,
    reference: AbstractProposal | None,
    weighting: Weighting,
    batch: int,
    updates: int,
    seeds: int,
    seed: int,
    evaluate_every: int | None,
    certify_every: int | None,
) -> _Job:
    """Check the arguments of `train` and set everything up."""
    for name, value in {"batch": batch, "updates": updates, "seeds": seeds}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    every = max(1, updates // 50) if evaluate_every is None else evaluate_every
    if every < 1:
        raise ValueError(f"evaluate_every must be at least 1, got {evaluate_every}")
    if certify_every is not None and certify_every < 1:
        raise ValueError(f"certify_every must be at least 1, got {certify_every}")

    if not isinstance(policy, Table):
        rule = rule.for_network()
    space = enumerate_states(env)
    if impossible := int(np.isinf(space.log_rewards).sum()):
        raise ValueError(
            f"{impossible:,} objects that can be reached have reward zero, and trajectory balance "
            "needs a finite log_reward: give them a small positive reward"
        )
    algorithm = Algorithm(
        env=space,
        rule=rule,
        objective=objective,
        proposal=proposal,
        source=source,
        reference=reference,
        weighting=weighting,
        batch=batch,
    )
    configuration = {
        "env": describe(space.env),
        **{name: describe(getattr(algorithm, name)) for name in _PARTS},
        "policy": describe(policy),
        "backward": describe(backward).removesuffix(".backward"),
        "batch": batch,
        "updates": updates,
        "seeds": seeds,
        "seed": seed,
        "evaluate_every": every,
        "certify_every": certify_every,
    }
    algorithm = algorithm.with_traced_numbers()
    back = backward(space)

    def start(seed: int) -> TrainState:
        key = jax.random.key(seed)
        flow = Flow(policy(space, key=key), back, jnp.array(0.0))
        if objective.learns_flows:
            states = policy(space, key=jax.random.fold_in(key, 1), outputs=1)
            flow = eqx.tree_at(lambda f: f.states, flow, states, is_leaf=lambda x: x is None)
        return algorithm.init(flow, seed)

    states = stack_seeds(start, list(range(seed, seed + seeds)))
    return _Job(algorithm, states, configuration)


def reopen(folder: str | Path, **arguments: Any) -> Run:
    """A run on disk as it stands, finished or not; `arguments` are those it was trained with."""
    given = inspect.signature(train).bind(**arguments)
    given.apply_defaults()
    wanted = inspect.signature(_prepare).parameters
    job = _prepare(**{name: given.arguments[name] for name in wanted})
    folder = Path(folder)
    states = checkpoint.load(folder / CHECKPOINT, job.states, job.configuration)
    _, lines = Record(folder / RECORD).read()
    done = int(states.step[0])
    return job.run(states, [line for line in lines if line["step"] <= done], folder)


_PARTS = ("rule", "objective", "proposal", "source", "reference", "weighting")


def _look(job: _Job, states: TrainState, losses: Float[np.ndarray, " seeds"] | None) -> Line:
    metrics, _ = evaluate(job.space, states.flow)
    line: Line = {"rejected": states.rejected.tolist()}
    line["discovered"] = modes_discovered(job.space, states).tolist()
    # Before the first update there is no training loss: the expected one stands in.
    line["train_loss"] = (metrics["loss"] if losses is None else losses).tolist()
    line |= {name: value.tolist() for name, value in metrics.items()}
    certify = job.configuration["certify_every"]
    if certify is not None and int(states.step[0]) % certify == 0:
        from ..certify.certificate import certify_states  # it certifies what this folder trains

        found = certify_states(job.algorithm, states)
        line[CERTIFICATE] = {name: value.tolist() for name, value in found.items()}
    return line


def modes_discovered(space: StateSpace, states: TrainState) -> Int[np.ndarray, " seeds"]:
    """How many of the modes training has drawn so far."""
    return np.sum(np.asarray(states.visited) & space.modes, axis=1)


class _Keeper:
    """The folder of a run: its record and its checkpoint."""

    def __init__(self, folder: Path, configuration: dict[str, Any]):
        self.folder, self.configuration = folder, configuration
        self.record, self.checkpoint = Record(folder / RECORD), folder / CHECKPOINT

    def open(self, states: TrainState, resume: bool) -> tuple[TrainState, list[Line]]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NatgfnError(f"cannot make the folder {self.folder}: {error.strerror}") from error
        if self.checkpoint.exists():
            if not resume:
                raise NatgfnError(
                    f"{self.folder} already holds a run: resume it, or choose another folder"
                )
            states = checkpoint.load(self.checkpoint, states, self.configuration)
            return states, self.record.rewind(int(states.step[0]))
        self.record.start(self.configuration)
        return states, []

    def keep(self, states: TrainState, line: Line) -> None:
        if CERTIFICATE in line:
            kept = snapshot(self.folder, line["step"])
            kept.parent.mkdir(exist_ok=True)
            checkpoint.save(kept, states, self.configuration)
        # The record first: a crash in between leaves a line too many, which `rewind` drops.
        self.record.append(line)
        checkpoint.save(self.checkpoint, states, self.configuration)


def progress_bar(progress: bool | str) -> Progress:
    """Shown if `progress` is anything but false; a task has a `note`."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        disable=not progress,
    )


def _note(line: Line) -> str:
    note = f"KL {np.mean(line['kl']):.2e}  TV {np.mean(line['tv']):.2e}"
    if CERTIFICATE in line:
        found = line[CERTIFICATE]
        # Of a network it is often only a lower bound.
        sign = "" if np.isfinite(found["rho_error"]).all() else ">= "
        note += f"  rho {sign}{np.mean(found['rho']):.2g}"
    return note + _rejections(line)


def look_at_losses(states: TrainState, losses: Float[np.ndarray, " seeds"] | None) -> Line:
    """What can be said of any run: rejected steps, and the loss since the last look."""
    found = {"rejected": states.rejected.tolist()}
    return found if losses is None else found | {"train_loss": losses.tolist()}


def note_loss(line: Line) -> str:
    """What `look_at_losses` found, in short."""
    loss = f"loss {np.mean(line['train_loss']):.3g}" if "train_loss" in line else ""
    return loss + _rejections(line)


def _rejections(line: Line) -> str:
    """The end of a note: how many steps were rejected, if any."""
    rejected = sum(line["rejected"])
    return f"  [red]{rejected} steps rejected[/red]" if rejected else ""
