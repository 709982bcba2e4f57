"""Where the trajectories of an update come from: rollouts, or a memory of earlier ones."""

from .ace import ACE as ACE
from .base import AbstractSource as AbstractSource
from .fresh import Fresh as Fresh
from .known import Known as Known
from .messages import Messages as Messages
from .mixed import Mixed as Mixed
from .perturbed import Perturbed as Perturbed
from .recall import Recall as Recall
from .replay import Replay as Replay
from .replay import revisit as revisit
from .replay import teacher_reward as teacher_reward
from .teacher import Teacher as Teacher
