"""natgfn's command line in processes of their own, started quickly.

They are forked from a server that has imported everything and computed nothing, so that a start
takes milliseconds instead of seconds; JAX starts in the child.
"""

import multiprocessing
import os
import re
import sys
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["natgfn.cli.commands", "natgfn.sweeps", "natgfn.dag", "paper"])


@dataclass
class Command:
    """A command that was started."""

    process: BaseProcess
    log: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def send(self, number: int, after: float = 0.0) -> bool:
        """Send a signal after some seconds; whether the process was still there."""
        self.process.join(after)
        if self.process.exitcode is not None:
            return False
        os.kill(self.pid, number)
        return True

    def wait(self, seconds: float = 300.0) -> int:
        """The exit code; a command that hangs is a fault."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            os.kill(self.pid, 9)
            raise AssertionError(f"it hangs: {self.text[-500:]}")
        return self.process.exitcode


def start(folder: Path, *words: str, limit: int | None = None, nobody: bool = False) -> Command:
    """Start `natgfn WORDS` in a folder.

    Args:
        folder: where it is started, and its output is kept.
        words: of the command.
        limit: the largest size of a file that it may write, in bytes: a full disk.
        nobody: whether it has the rights of nobody, to whom a folder can be closed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"log-{time.monotonic_ns()}.txt"
    process = _SERVER.Process(target=_called, args=(str(folder), str(log), words, limit, nobody))
    process.start()
    return Command(process, log)


def call(folder: Path, *words: str, **how: Any) -> tuple[int, str]:
    """The exit code of a command and what it said."""
    command = start(folder, *words, **how)
    return command.wait(), command.text


def one_line(code: int, text: str, *, codes: tuple[int, ...] = (2,)) -> str:
    """The line of a command that was refused; nothing else may be there but progress."""
    assert code in codes, f"exit code {code}: {text[-2000:]}"
    assert "Traceback" not in text, text[-2000:]
    found = re.findall(r"^error: (.+)$", text, re.MULTILINE)
    assert len(found) == 1, text[-2000:]
    return found[0]


def _called(folder: str, log: str, words: tuple[str, ...], limit: int | None, nobody: bool) -> None:
    """In the child."""
    os.chdir(folder)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(target, 1)
    os.dup2(target, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    sys.argv = ["natgfn", *words]
    if limit is not None:
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if nobody and os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    from natgfn.cli import main

    main()
