"""The trajectory Fisher as a linear operator: over visits, and over whole trajectories."""

from .operator import Blocks as Blocks
from .operator import Fisher as Fisher
from .operator import LinearisedFisher as LinearisedFisher
from .operator import Occupancy as Occupancy
from .operator import Scalar as Scalar
from .scores import ScoreFisher as ScoreFisher
from .scores import residual_gram as residual_gram
from .scores import score_gram as score_gram
from .scores import tabular_gram as tabular_gram
