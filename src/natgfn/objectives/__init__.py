"""Objectives: residuals that vanish at the target, and penalties on them."""

from .batch import Batch as Batch
from .batch import evaluate as evaluate
from .batch import residual_rows as residual_rows
from .penalties import AbstractPenalty as AbstractPenalty
from .penalties import Huber as Huber
from .penalties import Squared as Squared
from .penalties import curvature as curvature
from .penalties import slope as slope
from .trajectory_balance import TrajectoryBalance as TrajectoryBalance
