"""Workers asked in turn: each library alone while it is measured, all in one sitting."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from natgfn.errors import NatgfnError

from .venvs import RECIPES, cache, error_line, interpreter
from .workers.tasks import Task

HERE = Path(__file__).parent
ADAM, NATURAL = "natgfn Adam", "natgfn natural"
CONTENDERS: dict[str, tuple[str, ...]] = {
    ADAM: ("workers.on_natgfn", "adam"),
    NATURAL: ("workers.on_natgfn", "natural"),
    "gfnx": ("workers.on_gfnx",),
    "gfnx as installed": ("workers.on_gfnx",),
    "torchgfn": ("workers.on_torchgfn",),
}
"""The module of each worker, and its arguments."""
_OURS = ("PYTHONPATH", "JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS")
"""Settings that are not passed on: everyone starts from the same ones, and compiles."""


class Effort(NamedTuple):
    """How much is measured: rounds, and seconds of a turn."""

    rounds: int
    turn: float


class Worker:
    """A library in a process of its own.

    Raises:
        NatgfnError: it cannot be installed, started or asked.
    """

    def __init__(self, name: str):
        python, env = sys.executable, {k: v for k, v in os.environ.items() if k not in _OURS}
        if name in RECIPES:
            python = str(interpreter(name, cache()))
        else:
            root = HERE.parents[1]
            env["PYTHONPATH"] = os.pathsep.join([str(root / "src"), str(root)])
        self.name, self._said = name, tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, "-m", *CONTENDERS[name]],
            cwd=HERE,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        try:
            self.versions = self._answer()
        except NatgfnError:
            self.close()
            raise

    def ask(self, what: str, **details: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died: the missing answer says so
            print(json.dumps({"ask": what, **details}), file=self._process.stdin, flush=True)
        answer = self._answer()
        if "error" in answer:
            raise NatgfnError(f"{self.name}: {answer['error']}")
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return json.loads(line)
        self._process.wait()
        self._said.seek(0)
        raise NatgfnError(f"{self.name} stopped: {error_line(self._said.read())}")

    def close(self) -> None:
        """Hang up, and wait for its end."""
        self._process.communicate()
        self._said.close()


def competes(name: str, task: Task) -> bool:
    """Whether a library is measured on a task: torchgfn only on grids."""
    return task.kind == "grid" or name != "torchgfn"


def measure(
    workers: dict[str, Any], task: Task, effort: Effort, tell: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """The answers of all workers on a task, by regime and name.

    A worker that fails has an `error`; the others go on. Times are in seconds an update, of every
    round; `lengths` are mean lengths in steps, before and after.
    """
    made: dict[str, Any] = {}
    here = {name: worker for name, worker in workers.items() if competes(name, task)}
    for name, worker in here.items():
        tell(f"{task.name}: {name} compiles")
        made[name] = _try(worker.ask, "prepare", task=task)
    return {
        regime: _regime(here, made, length, effort, lambda text: tell(f"{task.name}, {text}"))
        for regime, length in task.lengths.items()
    }


def _regime(
    workers: dict[str, Any],
    made: dict[str, Any],
    length: float,
    effort: Effort,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    answers = {name: dict(answer) for name, answer in made.items()}
    updates: dict[str, int] = {}

    def each(what: str, step: Callable[[str, Any], None]) -> None:
        for name, worker in workers.items():
            if "error" not in answers[name]:
                tell(f"{name} {what}")
                answers[name] |= _try(step, name, worker) or {}

    def settle(name: str, worker: Any) -> None:
        there = worker.ask("regime", length=length)["length"]
        answers[name] |= {"lengths": [there], "seconds": []}
        trial = worker.ask("time", updates=2)["seconds"]
        updates[name] = max(1, min(1000, round(effort.turn / trial)))

    def turn(name: str, worker: Any) -> None:
        answers[name]["seconds"].append(worker.ask("time", updates=updates[name])["seconds"])

    def again(name: str, worker: Any) -> None:
        answers[name]["lengths"].append(worker.ask("length")["length"])

    each("finds the length", settle)
    for round_ in range(effort.rounds):
        each(f"in round {round_ + 1} of {effort.rounds}", turn)
    each("checks the length", again)
    return answers


def _try(ask: Callable[..., Any], *arguments: Any, **details: Any) -> Any:
    try:
        return ask(*arguments, **details)
    except NatgfnError as error:
        return {"error": str(error)}
