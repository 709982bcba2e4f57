"""The peers, each in an environment of its own, outside the work tree."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from natgfn.errors import NatgfnError

RECIPES: dict[str, tuple[str, ...]] = {
    # gfnx asks for an old NumPy, which our JAX does not work with: the second call overrules it.
    "gfnx": ("gfnx==0.0.1 equinox optax", "jax==0.10.0"),
    "gfnx as installed": ("gfnx==0.0.1 equinox optax",),
    "torchgfn": ("torch==2.13.0", "torchgfn==2.4.1"),
}
"""What pip is asked to install, call by call."""


def cache() -> Path:
    """The folder of the environments: `NATGFN_PEERS`, or one in the user's cache."""
    return Path(os.environ.get("NATGFN_PEERS") or Path.home() / ".cache" / "natgfn" / "peers")


def interpreter(peer: str, folder: Path) -> Path:
    """The Python that has a peer; made on first use, and again if its recipe has changed.

    Raises:
        NatgfnError: it cannot be installed.
    """
    home, recipe = folder / peer.replace(" ", "-"), "\n".join(RECIPES[peer])
    python, ready = home / "bin" / "python", home / "recipe.txt"
    if ready.exists() and ready.read_text() == recipe:
        return python
    shutil.rmtree(home, ignore_errors=True)
    _run(peer, [sys.executable, "-m", "venv", str(home)])
    for call in RECIPES[peer]:
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run(peer, [*pip, *call.split()])
    ready.write_text(recipe)
    return python


def _run(peer: str, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NatgfnError(f"cannot install {peer}: {error}") from error
    if done.returncode:
        raise NatgfnError(f"cannot install {peer}: {error_line(done.stderr)}")


def error_line(text: str) -> str:
    """The line of an output that says what went wrong: the first error of pip, or the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("ERROR")), (lines or ["no output"])[-1])
