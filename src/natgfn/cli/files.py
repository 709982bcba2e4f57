"""Folders and files that commands write."""

from collections.abc import Callable
from pathlib import Path

from ..errors import NatgfnError
from .voice import Voice


def named(text: str | Path) -> Path:
    """What `--out` names."""
    if not str(text).strip():
        raise NatgfnError("--out is empty: name a folder, or leave it out")
    return Path(text)


def make_folder(folder: Path) -> None:
    """Make a folder before the work whose results it is for."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NatgfnError(f"cannot make the folder {folder}: {error.strerror}") from error


def picture(voice: Voice, draw: Callable[[], Path]) -> None:
    """Draw, after all numbers are written; without matplotlib, say so."""
    try:
        draw()
    except NatgfnError as error:
        voice.say(f"no picture: {error}")
