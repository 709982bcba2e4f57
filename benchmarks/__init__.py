"""Benchmarks with limits: `natgfn bench NAME` prints a line for each, and fails on a miss."""

from collections.abc import Callable

from .certify import bench_certify
from .dag import bench_dag
from .factorised import bench_factorised
from .neural import bench_neural
from .peers import bench_peers
from .roofline import bench_roofline
from .scaling import bench_scaling
from .sharing import bench_sharing
from .structured import bench_structured
from .sweep import bench_sweep
from .tabular import bench_tabular
from .verdicts import bench_verdicts

BENCHMARKS: dict[str, Callable[..., int]] = {
    "tabular": bench_tabular,
    "neural": bench_neural,
    "certify": bench_certify,
    "factorised": bench_factorised,
    "dag": bench_dag,
    "structured": bench_structured,
    "sweep": bench_sweep,
    "sharing": bench_sharing,
    "peers": bench_peers,
    "roofline": bench_roofline,
    "scaling": bench_scaling,
    "verdicts": bench_verdicts,
}
"""Every benchmark; each prints its lines and returns the exit code. Some write `out` as well."""
