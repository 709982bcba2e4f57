"""Training: the compiled step, the loop around it, and what it leaves on disk."""

from .ace import ACE as ACE
from .algorithm import Algorithm as Algorithm
from .algorithm import StepInfo as StepInfo
from .algorithm import TrainState as TrainState
from .algorithm import advance as advance
from .loop import reopen as reopen
from .loop import train as train
from .perturbed import Perturbed as Perturbed
from .run import Run as Run
from .sources import AbstractSource as AbstractSource
from .sources import Fresh as Fresh
from .sources import Mixed as Mixed
from .sources import Recall as Recall
from .sources import Replay as Replay
from .teacher import Teacher as Teacher
