"""`python -m tests.faults`."""

import argparse
import sys

from . import fuzzing, killing, storage  # noqa: F401  they add their attacks
from .campaign import campaign


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="times the usual number of tries")
    parser.add_argument("--only", default="", help="a word that an attack's name must have")
    given = parser.parse_args()
    return 0 if campaign(given.seed, given.scale, given.only) else 1


if __name__ == "__main__":
    sys.exit(main())
