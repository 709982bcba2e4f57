"""Objectives: residuals that vanish at the target, and penalties on them."""

from .advantage import AdvantageBalance as AdvantageBalance
from .balance import DetailedBalance as DetailedBalance
from .balance import LogVariance as LogVariance
from .balance import SubTrajectoryBalance as SubTrajectoryBalance
from .balance import TrajectoryBalance as TrajectoryBalance
from .base import AbstractObjective as AbstractObjective
from .base import surplus as surplus
from .batch import Batch as Batch
from .batch import evaluate as evaluate
from .batch import residual_rows as residual_rows
from .expectation import Expected as Expected
from .expectation import expected as expected
from .flow_matching import FlowMatching as FlowMatching
from .penalties import AbstractPenalty as AbstractPenalty
from .penalties import Huber as Huber
from .penalties import Squared as Squared
from .penalties import curvature as curvature
from .penalties import huber as huber
from .penalties import slope as slope
from .tape import Kept as Kept
from .tape import Passing as Passing
from .transport import Transport as Transport
