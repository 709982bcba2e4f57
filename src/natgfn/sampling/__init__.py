"""Sampling: trajectories, the laws they are drawn from, and the weights between those laws."""

from .buffer import Buffer as Buffer
from .buffer import names_of as names_of
from .exhaustive import every_trajectory as every_trajectory
from .proposals import AbstractProposal as AbstractProposal
from .proposals import OnPolicy as OnPolicy
from .proposals import UniformMixture as UniformMixture
from .sharing import DEVICES as DEVICES
from .sharing import devices as devices
from .sharing import equal_share as equal_share
from .sharing import joined as joined
from .sharing import own_columns as own_columns
from .sharing import own_index as own_index
from .sharing import own_part as own_part
from .sharing import require_parts as require_parts
from .sharing import summed as summed
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
