"""Files that are written as a whole, or not at all, and cells that no spreadsheet computes."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO


def write_whole(path: Path, write: Callable[[IO[bytes]], object], *, earlier: bool = False) -> None:
    """Write a file: on disk, and under its name, only when it is complete.

    Args:
        path: of the file; one that is there is replaced.
        write: what to write.
        earlier: whether to keep what is replaced, as `earlier_of(path)`.

    Raises:
        OSError: it cannot be written; what was there is unchanged.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if earlier and path.exists():
            path.replace(earlier_of(path))
        partial.replace(path)
        _settle(path.parent)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def earlier_of(path: Path) -> Path:
    """Where the file is that was there before."""
    return path.with_stem(f"{path.stem}.earlier")


def _settle(folder: Path) -> None:
    """Have new names on disk too; only a POSIX system can open a folder."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def cell(text: str) -> str:
    """Text for a CSV file; a spreadsheet would compute what looks like a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
