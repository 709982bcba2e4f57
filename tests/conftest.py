"""Annotations are checked at run time in every test, and hypothesis is made repeatable."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

# Read when NumPy is imported, which the next line does: see natgfn/__init__.py.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Programs of tests are compiled more often than they are run: this halves the time of the suite,
# and `pytest_runtest_setup` goes further. What a user starts in a process of its own
# (`test_readme.py`) is compiled as a user's would be.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false"
)

from jaxtyping import install_import_hook

# Before anything of natgfn is imported: shapes and types of every annotated function.
if not os.environ.get("NATGFN_UNCHECKED"):
    install_import_hook(["natgfn", "paper", "benchmarks"], "beartype.beartype")

import hypothesis
import jax
import pytest
from oracles import WORLDS, World, explore

hypothesis.settings.register_profile(
    "natgfn", deadline=None, derandomize=True, max_examples=50, database=None
)
hypothesis.settings.load_profile("natgfn")


@pytest.fixture(scope="session", params=WORLDS)
def world(request: pytest.FixtureRequest) -> World:
    """Small environments, graded and not, trees and not, with all their trajectories."""
    return explore(WORLDS[request.param])


def pytest_collection_finish() -> None:
    """What was imported stays: no search for garbage has to go through it again."""
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Compile as fast as possible, unless a test is marked as one that trains for long."""
    trains = item.get_closest_marker("trains") is not None
    jax.config.update("jax_disable_most_optimizations", not trains)


@pytest.fixture(autouse=True, scope="module")
def _programs_are_let_go() -> Iterator[None]:
    """Each compiled program holds memory maps; with more than 65,530 the process would crash."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 50_000:
        jax.clear_caches()
