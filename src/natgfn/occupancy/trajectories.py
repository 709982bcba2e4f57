"""Whole trajectories: the occupancy behind the score form of the Fisher."""

from ..envs import AbstractEnv
from ..fisher import Occupancy, ScoreFisher
from ..objectives import Batch
from ..policies import AbstractPolicy, Flow
from .base import AbstractOccupancy
from .sampled import Sampled


class Trajectories(AbstractOccupancy):
    """The trajectories of a batch, each as one (`eq:sampled_fisher_training` without its sum over
    steps): what `optim.SampleSpace` preconditions with."""

    def __call__(self, env: AbstractEnv, policy: AbstractPolicy, batch: Batch) -> Occupancy:
        """Their visits, step by step, which say where they go but not what belongs together."""
        return Sampled()(env, policy, batch)

    def fisher(self, env: AbstractEnv, flow: Flow, batch: Batch) -> ScoreFisher:
        """The score form, on both policies, flows and log Z."""
        return ScoreFisher(env, flow, batch)
