"""The training loop: compiled chunks, and everything a person sees between them."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..algorithm import TrainState, advance
from ..envs import AbstractEnv
from ..optim import AbstractRule
from ..progress import Progress
from ..watch import AbstractWatcher, Line
from .devices import from_first, mesh_for
from .interrupt import deferred
from .record import Record
from .result import Run
from .setup import Setup, decide
from .store import RECORD, Store, locked


def train(
    env: AbstractEnv,
    rule: AbstractRule | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    devices: int | None = None,
    progress: bool | str = True,
    log: Callable[[Line], None] | None = None,
    **settings: Any,
) -> Run:
    """Train a GFlowNet to sample objects of `env` in proportion to their reward.

    Args:
        env: the environment.
        rule: how a batch becomes an update; by default a natural step that needs no tuning.
        out: a folder for the record and the checkpoint; nothing is written without it.
        resume: go on from the checkpoint in `out`, if there is one.
        devices: how many of JAX's devices share each batch; by default there is one, unshared.
        progress: whether to say how far it is, or the title under which to say it.
        log: called with each line of the record, a dictionary, as soon as it is known.
        settings: any other field of `Setup`, by name: `policy`, `objective`, `batch`, `updates`,
            `seeds`, `watch`, ...

    Raises:
        ValueError: an argument or the environment is unusable; the message says why.
        NatgfnError: the folder is.
    """
    # A NumPy number is an array to JAX, and would be traced.
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in settings.items()}
    setup = Setup(env, rule, **plain)
    return run(setup, out=out, resume=resume, devices=devices, progress=progress, log=log)


def run(
    setup: Setup,
    *,
    start: TrainState | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    devices: int | None = None,
    seconds: float | None = None,
    progress: bool | str = True,
    log: Callable[[Line], None] | None = None,
) -> Run:
    """Make the updates of a setup, and look every now and then.

    Args:
        setup: what to run.
        start: the states to start from, if not the setup's own; their step counts as made.
        out: a folder for the record and the checkpoint; nothing is written without it.
        resume: go on from the checkpoint in `out`, if there is one.
        devices: how many of JAX's devices share each batch. Where several processes have them
            (`jax.distributed`), each makes this call; the first reads, writes and speaks.
        seconds: of training in this call, after which the rest of the updates is left to another.
        progress: whether to say how far it is, or the title under which to say it.
        log: called with each line of the record as soon as it is known.
    """
    setup, chosen = decide(setup)
    mesh = None if devices is None else mesh_for(setup, devices)
    first = mesh is None or jax.process_index() == 0
    if not first:
        out, progress, log = None, False, None
    if seconds is not None and mesh is not None and jax.process_count() > 1:
        raise ValueError("seconds are not the same in several processes: leave them out")
    algorithm, watchers = setup.algorithm(), setup.watch or ()
    states = setup.start() if start is None else start
    folder = None if out is None else Path(out)
    store = None if folder is None else Store(folder, setup)
    history: list[Line] = []

    def due_at(step: int) -> list[AbstractWatcher]:
        return [w for w in watchers if step % (w.every or 1) == 0 or step >= setup.updates]

    def look(losses: Float[np.ndarray, " seeds"] | None, seconds: float) -> None:
        """Add a line to the history."""
        step = int(states.step[0])
        line: Line = {"step": step, "seconds": round(seconds, 3)}
        line["rejected"] = states.rejected.tolist()
        due = due_at(step)
        for watcher in due:
            line |= watcher(algorithm, states)
        if losses is not None:
            line["train_loss"] = losses.tolist()
        elif "loss" in line:  # before the first update the expected loss stands in
            line["train_loss"] = line["loss"]
        history.append(line)
        if store is not None:
            store.keep(states, line, snapshot=any(w.keeps for w in due))
        if log is not None:
            log(line)

    intervals = (setup.evaluate_every, *(w.every for w in watchers))
    stops = [every for every in intervals if every is not None]
    title = progress if isinstance(progress, str) else "training"
    with (
        locked(folder),
        Progress(title, setup.updates, shown=bool(progress)) as shown,
        deferred(store is not None or not first) as interrupt,
    ):
        remark = ""
        if store is not None:
            states, history, remark = store.open(states, resume)
        if mesh is not None:
            states = from_first(states)
        shown.say(chosen)
        if remark:
            shown.say(remark)
        if not history:
            look(None, 0.0)
        interrupt()
        started, before = time.perf_counter(), history[-1]["seconds"]
        spent = last = 0.0
        while (done := history[-1]["step"]) < setup.updates:
            shown.update(done, note(due_at(done), history[-1]))
            if seconds is not None and spent + last > seconds:
                shown.say(f"no time is left after {done:,} of {setup.updates:,} updates")
                break
            count = min(setup.updates - done, *(every - done % every for every in stops))
            states, losses = advance(algorithm, states, jnp.array(count), mesh)
            losses = np.asarray(losses)
            look(losses, before + time.perf_counter() - started)
            interrupt()
            spent, last = (now := time.perf_counter() - started), now - spent
        shown.update(done, note(due_at(done), history[-1]))
    return Run(setup, algorithm, states, history, folder)


def reopen(folder: str | Path, setup: Setup) -> Run:
    """A run on disk as it stands, finished or not; `setup` is what it was trained with."""
    setup, _ = decide(setup)
    folder = Path(folder)
    states, _ = Store(folder, setup).last(setup.start())
    _, lines = Record(folder / RECORD).read()
    done = int(states.step[0])
    history = [line for line in lines if line["step"] <= done]
    return Run(setup, setup.algorithm(), states, history, folder)


def note(watchers: list[AbstractWatcher], line: Line) -> str:
    """A line in short: what those who looked say of it, and how many steps were rejected."""
    notes = [watcher.note(line) for watcher in watchers]
    if not any(notes) and "train_loss" in line:
        notes.append(f"loss {np.mean(line['train_loss']):.3g}")
    rejected = sum(line["rejected"])
    notes.append(f"[red]{rejected} steps rejected[/red]" if rejected else "")
    return "  ".join(filter(None, notes))
