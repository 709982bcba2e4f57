"""Benchmarks with limits: `natgfn bench NAME` prints a line for each, and fails on a miss."""

from collections.abc import Callable

from .certify import bench_certify
from .neural import bench_neural
from .tabular import bench_tabular

BENCHMARKS: dict[str, Callable[[], int]] = {
    "tabular": bench_tabular,
    "neural": bench_neural,
    "certify": bench_certify,
}
"""Every benchmark; each prints its lines and returns the exit code."""
