"""Memory is estimated before it is taken: what does not fit is refused in a line."""

import math
import os
import sys
from contextlib import suppress
from pathlib import Path


def available() -> float:
    """Bytes that this process can still take; infinite where the system does not say."""
    limits = [math.inf]
    with suppress(OSError), Path("/proc/meminfo").open() as lines:
        limits += [1024.0 * int(line.split()[1]) for line in lines if "MemAvailable" in line]
    if sys.platform == "linux":
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        if most != resource.RLIM_INFINITY:
            taken = int(Path("/proc/self/statm").read_text().split()[0])
            limits.append(most - taken * os.sysconf("SC_PAGE_SIZE"))
    return min(limits)


def require_memory(what: str, least: float | int, instead: str) -> None:
    """A ValueError of one line, unless the least that something takes, in bytes, is there."""
    if least > (there := available()):
        raise ValueError(
            f"{what} would take at least {gigabytes(least)} of memory, and {gigabytes(there)} are "
            f"free: {instead}"
        )


def gigabytes(size: float | int) -> str:
    """A number of bytes in words, to two digits."""
    return f"{size / 2**30:.2g} GB" if size < 10 * 2**30 else f"{size / 2**30:,.0f} GB"
