"""Sampling: trajectories, the laws they are drawn from, and the weights between those laws."""

from .buffer import Buffer as Buffer
from .exhaustive import every_trajectory as every_trajectory
from .proposals import AbstractProposal as AbstractProposal
from .proposals import OnPolicy as OnPolicy
from .proposals import UniformMixture as UniformMixture
from .rollout import PathLogProbs as PathLogProbs
from .rollout import Trajectories as Trajectories
from .rollout import is_long as is_long
from .rollout import log_probs as log_probs
from .rollout import retrace as retrace
from .rollout import rollback as rollback
from .rollout import rollout as rollout
from .rollout import taken as taken
from .weights import Weighting as Weighting
