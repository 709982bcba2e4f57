"""Compiled programs are kept between processes: a program that ran before starts at once.

JAX keeps them in the user's cache folder (`XDG_CACHE_HOME`, or `~/.cache`), under `natgfn`. The
variable `NATGFN_CACHE` names another folder, or is `off`. A folder that was chosen through JAX
itself, in its configuration or by `JAX_COMPILATION_CACHE_DIR`, is left alone with all its settings.

That is arranged when `graphical` is imported, the first folder that compiles, which all others
import: nothing has been compiled by then, and a command that only prints its help loads no JAX.
JAX names a file by a hash of the program, its options and its own version; we add the processor's
features, as homes are shared between machines. Where a file is read while another process writes
it, or one was killed while writing, its checksum fails and the program is compiled again.
"""

import hashlib
import os
import platform
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import jax

SECONDS = 0.2
"""Programs that take less to compile are not kept: reading one takes a tenth of that."""

BYTES = 2**30
"""The most that is kept; beyond, what was not used for longest goes."""


def keep_programs() -> None:
    """Tell JAX where to keep compiled programs, unless someone has, or it cannot be there."""
    root = chosen_folder(os.environ)
    if root is None or jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    folder = root / f"jax-{jax.__version__}-{_processor()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        return
    shrink(root, BYTES)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SECONDS)
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    _silence()


def chosen_folder(variables: Mapping[str, str]) -> Path | None:
    """The folder of all programs that environment variables ask for, if they ask for any."""
    told = variables.get("NATGFN_CACHE", "")
    if told.lower() in ("off", "0", "no", "false"):
        return None
    if told:
        return Path(told).absolute()
    home = variables.get("XDG_CACHE_HOME", "")
    with suppress(RuntimeError):  # a user without a home
        return (Path(home) if Path(home).is_absolute() else Path.home() / ".cache") / "natgfn"
    return None


def shrink(root: Path, most: int) -> None:
    """Delete programs, those not used for longest first, until `most` bytes are left."""
    found = []
    for path in root.glob("jax-*/*-cache"):
        with suppress(OSError):  # another process may have deleted it
            found.append((path.stat().st_atime, path.stat().st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= most:
            return
        with suppress(OSError):
            path.unlink()
        total -= size


def _silence() -> None:
    """Have XLA log what is fatal alone, unless a user has chosen what it logs.

    Of every program that it reads it says as an error that this machine cannot `prefer-no-gather`,
    which is advice to the compiler and no feature of a machine (jax issue 38445).
    """
    as_jax_has_it = os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "1"
    if as_jax_has_it and jax.config.values["jax_logging_level"] == "NOTSET":
        jax.config.update("jax_logging_level", "CRITICAL")
        jax.config.update("jax_logging_level", "NOTSET")  # Python's loggers as before; XLA's stay


def _processor() -> str:
    """A short name of what this processor can do; programs for another may be illegal on it."""
    features = platform.machine() + platform.processor()
    with suppress(OSError), Path("/proc/cpuinfo").open() as lines:
        features += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(features.encode()).hexdigest()[:8]
