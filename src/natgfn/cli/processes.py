"""Several processes that share every batch of a run: started here, or by Slurm's `srun`.

All run the same command. The first, which is the one that a person has started, writes and speaks.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from ..errors import NatgfnError

_ADDRESS, _NUMBER = "NATGFN_FIRST_PROCESS", "NATGFN_PROCESS"
"""Variables of a process that the first one has started: where that listens, and its number."""

_TASKS, _TASK = "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"
"""Variables of a process that `srun` has started: how many there are, and its number."""

_GRACE = 10
"""Seconds in which a process that has failed should have ended."""


def speaks_for_all(count: int | None) -> bool:
    """Whether this is the first of `count` processes that share batches, or the only one."""
    if count is None:
        return True
    return int(os.environ.get(_TASK if _tasks() > 1 else _NUMBER, "0")) == 0


def _tasks() -> int:
    return int(os.environ.get(_TASKS, "1"))


@contextmanager
def together(count: int | None) -> Iterator[int | None]:
    """Make this process one of `count`, before JAX is used; how many devices they have together.

    None, and nothing happens, if it is to be alone.
    """
    if count is None:
        yield None
        return
    import jax

    with ExitStack() as stack:
        if _tasks() > 1:
            if _tasks() != count:
                raise NatgfnError(f"--processes must be {_tasks()}, as srun has it, got {count}")
            jax.distributed.initialize()
        elif count > 1:
            address = os.environ.get(_ADDRESS) or stack.enter_context(_others(count))
            # Otherwise JAX aborts those that are left when one has died.
            jax.config.update("jax_enable_recoverability", True)
            number = int(os.environ.get(_NUMBER, "0"))
            jax.distributed.initialize(address, count, number, coordinator_bind_address=address)
        _connect()
        yield jax.device_count()
        jax.distributed.shutdown()


def _connect() -> None:
    """The first exchange, of which Gloo, which makes it, tells on standard output."""
    from jax.experimental import multihost_utils

    sys.stdout.flush()
    kept = os.dup(1)
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 1)
    try:
        multihost_utils.sync_global_devices("natgfn")
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def _others(count: int) -> Iterator[str]:
    """All processes but this one, which is the first, and the address where it listens.

    They end with this context, whatever happens. Ctrl-C reaches the first one only.
    """
    import jax

    from ..sweeps import cores

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    # More threads of XLA than cores would fight for them.
    os.environ.setdefault("NPROC", str(max(1, cores() // count)))
    with tempfile.TemporaryFile() as said:
        others = [
            subprocess.Popen(
                [sys.executable, "-m", "natgfn.cli", *sys.argv[1:]],
                env=os.environ | {_ADDRESS: address, _NUMBER: str(number)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
            for number in range(1, count)
        ]
        try:
            yield address
        except jax.errors.JaxRuntimeError as error:
            if not (why := _why_one_ended(others, said)):
                raise
            raise NatgfnError(
                f"one of the {count} processes has ended, {why}: natgfn resume goes on from the "
                "last checkpoint"
            ) from error
        finally:
            for other in others:
                other.kill()
                other.wait()


def _why_one_ended(others: list[subprocess.Popen[bytes]], said: IO[bytes]) -> str:
    """By which signal, or with which last words; nothing if all are still there after a while."""
    deadline = time.monotonic() + _GRACE
    while all(other.poll() is None for other in others):
        if time.monotonic() > deadline:
            return ""
        time.sleep(0.1)
    code = next(other.returncode for other in others if other.returncode is not None)
    if code < 0:
        return f"by {signal.Signals(-code).name}"
    said.seek(0)
    lines = said.read().decode(errors="replace").strip().splitlines()
    return f"with {lines[-1]!r}" if lines else f"with exit code {code}"
