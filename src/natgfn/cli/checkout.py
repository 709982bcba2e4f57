"""What is in the repository and not in the installed package: the paper, and the benchmarks."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

from ..errors import NatgfnError

ROOT = Path(__file__).parents[3]
"""The root of the repository, if this file is in one."""


def from_checkout(name: str, command: str, root: Path = ROOT) -> ModuleType:
    """The package `name` at the root of the repository.

    Raises:
        NatgfnError: natgfn was not installed from a checkout (`pip install --editable .`).
    """
    if not (root / name / "__init__.py").exists():
        raise NatgfnError(
            f"natgfn {command} needs the repository, of which only the library is installed: "
            "clone it and install from there with pip install --editable ."
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return importlib.import_module(name)
