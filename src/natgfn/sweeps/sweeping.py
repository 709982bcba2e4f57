"""Run the trials of a study, side by side, and go on with those that were interrupted."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import require_whole
from ..progress import Progress
from ..training import Setup, locked
from ..watch import Line
from .cluster import workers
from .result import USUAL, Sweep, direction
from .study import Over, Study, vary
from .trial import last_line, run_trial

if TYPE_CHECKING:
    from distributed import Client

TOPIC = "natgfn"
"""Under which workers tell the client how far their trials are."""

_OFTEN = 0.5  # seconds from one such message of a trial to the next


def sweep(
    setup: Setup,
    over: Over,
    *,
    out: str | Path,
    metric: str | None = None,
    scheduler: str | None = None,
    processes: int | None = None,
    progress: bool = True,
) -> Sweep:
    """Run every combination of settings with every seed, each as a run in a folder of its own.

    Given the same arguments again, it goes on: what is finished is not run again, and what was
    interrupted goes on from its checkpoint. A script that calls it must guard itself by
    `if __name__ == "__main__":`, as its worker processes import it.

    Args:
        setup: everything that is not varied; its `seeds` are those of each setting.
        over: values by dotted name, such as `{"rule.rate": [0.01, 0.1], "batch": [64, 128]}`.
        out: the folder of the sweep; workers on other machines must see it under the same name.
        metric: by which settings are compared: `kl`, or else another one of the last values.
        scheduler: the address of a Dask scheduler; by default workers are started here.
        processes: how many are started here; by default one for each core.
        progress: whether to say how far it is.

    Raises:
        ValueError: a setting cannot be varied so.
        NatgfnError: the folder holds another sweep, or dask is not installed.
    """
    return run_study(
        vary(setup, over),
        Path(out),
        metric=metric,
        scheduler=scheduler,
        processes=processes,
        progress=progress,
    )


def run_study(
    study: Study,
    out: Path,
    *,
    metric: str | None = None,
    scheduler: str | None = None,
    processes: int | None = None,
    progress: bool = True,
) -> Sweep:
    """Run all trials of a study that are not finished yet, and write down what was found."""
    if metric is not None:
        direction(metric)
    if processes is not None:
        require_whole("processes", processes, 1, 10_000)
    out = out.absolute()
    with locked(out):
        study.keep(out)
        folders = [out / trial.name for trial in study.trials]
        pairs = zip(study.trials, folders, strict=True)
        lines = [last_line(trial.setup, folder) for trial, folder in pairs]
        waiting = [number for number, line in enumerate(lines) if line is None]
        if waiting:
            with workers(scheduler, processes) as client:
                for number, line in _run(client, study, folders, waiting, progress):
                    lines[number] = line
        known: list[Line] = [line for line in lines if line is not None]
        found = Sweep(study, known, out, metric or _usual(known))
        found.write()
    return found


def _usual(lines: Sequence[Line]) -> str:
    names = {name for line in lines for name in line}
    return next((name for name in USUAL if name in names), USUAL[-1])


def _run(
    client: "Client", study: Study, folders: Sequence[Path], waiting: list[int], shown: bool
) -> Iterator[tuple[int, Line]]:
    """Each trial that ends, by number, with its last line, while it is said how far all are."""
    from distributed import as_completed

    trials = study.trials
    done = {number: trials[number].setup.updates for number in range(len(trials))}
    done |= dict.fromkeys(waiting, 0)
    failed = 0
    total = sum(trial.setup.updates for trial in trials)

    with Progress("sweep", total, shown=shown) as bar:

        def say() -> None:
            ended = len(trials) - len(left)
            note = f"{ended:,} of {len(trials):,} trials"
            bar.update(sum(done.values()), note + (f", {failed} failed" if failed else ""))

        def hear(event: tuple[float, Any]) -> None:
            number, step = event[1]
            done[number] = max(done[number], step)
            say()

        left = set(waiting)
        client.subscribe_topic(TOPIC, hear)
        jobs = {
            client.submit(_work, trials[n].setup, str(folders[n]), n, pure=False): n
            for n in waiting
        }
        say()
        ending = as_completed(list(jobs), with_results=False, raise_errors=False)
        for job in ending:
            number = jobs.pop(job)
            error = job.exception()
            line = job.result() if error is None else {"error": _lost(error)}
            left.discard(number)
            done[number] = trials[number].setup.updates
            if "error" in line:
                failed += 1
                bar.say(f"{trials[number].name} ({trials[number].label}) failed: {line['error']}")
            say()
            yield number, line
        client.unsubscribe_topic(TOPIC)


def _lost(error: BaseException) -> str:
    return f"its workers died: {' '.join(str(error).split())}"


def _work(setup: Setup, folder: str, number: int) -> Line:
    """On a worker."""
    from distributed import get_worker

    worker, due = get_worker(), [0.0]

    def tell(line: Line) -> None:
        if time.monotonic() >= due[0]:
            due[0] = time.monotonic() + _OFTEN
            worker.log_event(TOPIC, (number, line["step"]))

    return run_trial(setup, Path(folder), tell)
