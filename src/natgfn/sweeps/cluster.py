"""Workers: a process for each core of this machine, or those of a scheduler that is running."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import MissingExtra, NatgfnError

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

DEATHS = 10
"""So many workers may die under a trial before it counts as failed: it may be the cause."""

_ALONE = {"NPROC": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Variables of a worker: one thread each for XLA, which reads the first, and for LAPACK."""


@contextmanager
def workers(scheduler: str | None, processes: int | None) -> Iterator["Client"]:
    """A client of the scheduler at an address, or of one that ends with this context.

    Args:
        scheduler: an address, such as tcp://10.0.0.1:8786.
        processes: on this machine, if there is no address; one for each core by default.
    """
    try:
        import dask.config
        from distributed import Client
    except ModuleNotFoundError as error:
        raise MissingExtra(error, "sweep") from error
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    if scheduler is not None:
        try:
            client = Client(scheduler, timeout=30)
        except (OSError, ValueError) as error:
            raise NatgfnError(
                f"no Dask scheduler answers at {scheduler}: start one with `dask scheduler`, and "
                "workers with `dask worker`"
            ) from error
        with client:
            yield client
        return
    settings = {"distributed.scheduler.allowed-failures": DEATHS}
    with (
        dask.config.set(settings),
        _started(processes or cores()) as cluster,
        Client(cluster) as client,
    ):
        yield client


def _started(processes: int) -> "LocalCluster":
    """Workers here, started again if one dies before it is up."""
    from distributed import LocalCluster

    died = None
    for _ in range(DEATHS):
        try:
            return LocalCluster(
                n_workers=processes,
                threads_per_worker=1,
                memory_limit=None,
                dashboard_address=None,  # pyright: ignore[reportArgumentType]
                silence_logs=logging.CRITICAL,
                env=_ALONE,
            )
        except RuntimeError as error:
            died = error
    raise NatgfnError(
        f"{DEATHS} times a worker process died before it was up ({died}): see whether there is "
        "memory for as many, or lower --processes"
    ) from died


def cores() -> int:
    """Those that this process may use, where the system tells."""
    told = getattr(os, "sched_getaffinity", None)
    return len(told(0)) if told else os.cpu_count() or 1
