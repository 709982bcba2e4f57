"""natgfn: GFlowNets trained by natural gradient.

What it exports is loaded when it is first asked for: JAX takes a second, which a command line
that prints its help does not need.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from .errors import NatgfnError as NatgfnError

# LAPACK's threads fight with XLA's for the cores: its small factorisations take ten to a
# hundred times longer with them. Read when NumPy and SciPy are first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

if TYPE_CHECKING:
    from . import certify as certify
    from . import dag as dag
    from . import envs as envs
    from . import graphical as graphical
    from . import metrics as metrics
    from . import objectives as objectives
    from . import occupancy as occupancy
    from . import optim as optim
    from . import policies as policies
    from . import sampling as sampling
    from . import solvers as solvers
    from . import sources as sources
    from . import statespace as statespace
    from . import sweeps as sweeps
    from . import training as training
    from . import watch as watch
    from .sweeps import sweep as sweep
    from .training import Run as Run
    from .training import Setup as Setup
    from .training import run as run
    from .training import train as train

_FOLDERS = {
    *("certify", "dag", "envs", "graphical", "metrics", "objectives", "occupancy", "optim"),
    *("policies", "sampling", "solvers", "sources", "statespace", "sweeps", "training", "watch"),
}
_INSIDE = {
    **dict.fromkeys(("Run", "Setup", "run", "train"), "training"),
    "sweep": "sweeps",
}


def __getattr__(name: str) -> Any:
    if name in _FOLDERS:
        return importlib.import_module(f".{name}", __name__)
    if name in _INSIDE:
        return getattr(importlib.import_module(f".{_INSIDE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FOLDERS, *_INSIDE})
