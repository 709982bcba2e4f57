"""natgfn beside its peers on the same tasks, each library through its own interface."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from natgfn.errors import NatgfnError

from ..pages import as_rows, circumstances, progress, write
from . import report
from .rounds import CONTENDERS, Effort, Worker, competes, measure
from .workers.tasks import TASKS

FULL, QUICK = Effort(rounds=9, turn=0.4), Effort(rounds=3, turn=0.1)


def bench_peers(out: Path = Path("results"), quick: bool = False) -> int:
    """natgfn beside gfnx and torchgfn, in turn; 0 if it is as much faster as it should be."""
    about, found = circumstances(), []
    entries: list[dict[str, Any]] = []
    with ExitStack() as stack:
        tell = stack.enter_context(progress())
        workers, contenders = _start(stack, tell)
        for task in TASKS[:2] if quick else TASKS:
            answers = measure(workers, task, QUICK if quick else FULL, tell)
            for regime, answered in answers.items():
                for name, state in contenders.items():
                    if "error" in state and competes(name, task):
                        answered[name] = state
                entries.append(report.summary(task, regime, answered))
                print(f"{task.name}, {regime}: {report.same_work(entries[-1])}")
                for name, answer in answered.items():
                    if "error" in answer:
                        print(f"{task.name}, {regime}: {name} FAILED: {answer['error']}")
                limits = report.measurements(task, regime, answered)
                found += limits
                for limit in limits:
                    limit.report()
    results = {**about, "contenders": contenders, "tasks": entries, "limits": as_rows(found)}
    name, title = "bench.peers.quick" if quick else "bench.peers", "natgfn beside its peers"
    write(out, name, title, results, report.page(results), report.draw(results))
    same = not any(entry["differences"] for entry in entries)
    return 0 if same and all(measurement.good for measurement in found) else 1


def _start(
    stack: ExitStack, tell: Callable[[str], None]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Every worker that can be started, and of each contender its versions or its error."""
    workers, contenders = {}, {}
    for name in CONTENDERS:
        tell(f"{name} starts")
        try:
            workers[name] = Worker(name)
        except NatgfnError as error:
            contenders[name] = {"error": str(error)}
            continue
        stack.callback(workers[name].close)
        contenders[name] = {"versions": workers[name].versions}
    return workers, contenders
