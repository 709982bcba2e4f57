"""A worker's side of the conversation: a line of JSON in, a line of JSON out."""

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Protocol

from .tasks import Task, offset_for

DRAWS = 1024
"""Trajectories from which a mean length is estimated, as in `benchmarks.measure`."""


class Sampler(Protocol):
    """A library on a task."""

    parameters: int
    """Numbers that training changes."""
    batch: int
    """Trajectories of the last update."""

    def shift(self, offset: float) -> None:
        """Start again from the initial policy, with `offset` added to the logit of stopping."""
        ...

    def length(self) -> float:
        """The mean length of `DRAWS` new trajectories, in steps."""
        ...

    def update(self, count: int) -> None:
        """Make `count` updates, and wait for the last."""
        ...


def serve(make: Callable[[Task], Sampler], *packages: str) -> None:
    """Say which versions there are, then answer until the other side hangs up.

    An error is an answer too.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    print(json.dumps({name: version(name) for name in packages}), file=out, flush=True)
    sampler: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["ask"] == "prepare":
                sampler = None  # lets go of the last one first
                sampler = make(Task(*asked["task"]))
                answer: dict[str, Any] = {"first": _seconds(sampler, 1)}
                answer |= {"parameters": sampler.parameters, "batch": sampler.batch}
            elif asked["ask"] == "regime":
                answer = _settle(sampler, asked["length"])
                sampler.update(1)
            elif asked["ask"] == "length":
                answer = {"length": sampler.length()}
            else:
                answer = {"seconds": _seconds(sampler, asked["updates"]) / asked["updates"]}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        print(json.dumps(answer), file=out, flush=True)


def _seconds(sampler: Sampler, updates: int) -> float:
    start = time.perf_counter()
    sampler.update(updates)
    return time.perf_counter() - start


def _settle(sampler: Sampler, wanted: float) -> dict[str, float]:
    """Bring trajectories to a mean length; what had to be added, and the length that came out."""

    def length(offset: float) -> float:
        sampler.shift(offset)
        return sampler.length()

    offset = offset_for(length, wanted)
    return {"offset": offset, "length": length(offset)}
