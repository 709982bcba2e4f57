"""Every statement of the paper, with random instances to put it to the test.

A statement draws an instance from a key and returns the evidence: both sides of an
inequality or an equation. Where it is an inequality, `tight` gives an instance near equality, so
that a bound which is too generous is found out as well as one which is too strict.
"""

from . import conditioning, geometry, realisability, structured, surrogates, trajectories
from .base import Statement as Statement

STATEMENTS: tuple[Statement, ...] = (
    *geometry.STATEMENTS,
    *trajectories.STATEMENTS,
    *surrogates.STATEMENTS,
    *structured.STATEMENTS,
    *conditioning.STATEMENTS,
    *realisability.STATEMENTS,
)
