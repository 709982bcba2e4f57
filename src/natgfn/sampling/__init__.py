"""Sampling: trajectories, the laws they are drawn from, and the weights between those laws."""

from .buffer import Buffer as Buffer
from .buffer import names_of as names_of
from .exhaustive import every_trajectory as every_trajectory
from .proposals import AbstractProposal as AbstractProposal
from .proposals import OnPolicy as OnPolicy
from .proposals import UniformMixture as UniformMixture
from .trajectories import PathLogProbs as PathLogProbs
from .trajectories import Trajectories as Trajectories
from .trajectories import draw_objects as draw_objects
from .trajectories import invert_cdf as invert_cdf
from .trajectories import log_probs as log_probs
from .trajectories import retrace as retrace
from .trajectories import rollback as rollback
from .trajectories import rollout as rollout
from .trajectories import taken as taken
from .weights import Weighting as Weighting
