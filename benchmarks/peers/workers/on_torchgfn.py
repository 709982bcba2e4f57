# pyright: reportMissingImports=false
"""Trajectory balance with torchgfn: probabilities kept from sampling, as for its own policy."""

import torch
from gfn.estimators import DiscretePolicyEstimator
from gfn.gflownet import TBGFlowNet
from gfn.gym import HyperGrid
from gfn.preprocessors import KHotPreprocessor
from gfn.utils.modules import MLP, UniformModule

from .serve import DRAWS, serve
from .tasks import DEPTH, RATE, WIDTH, Task


class Sampler:
    def __init__(self, task: Task):
        torch.manual_seed(0)
        rewards = {"R0": 1e-3, "R1": 0.5, "R2": 2.0}
        self._env = HyperGrid(task.dims, task.side, reward_fn_kwargs=rewards)
        seen, actions = KHotPreprocessor(task.side, task.dims), self._env.n_actions
        self._network = MLP(
            task.side * task.dims, actions, WIDTH, DEPTH, activation_fn="leaky_relu"
        )
        uniform = UniformModule(output_dim=actions - 1)
        self._flow = TBGFlowNet(
            pf=DiscretePolicyEstimator(self._network, actions, preprocessor=seen),
            pb=DiscretePolicyEstimator(uniform, actions, preprocessor=seen, is_backward=True),
        )
        self.batch, self._stop = task.batch, self._network.last_layer.bias.detach()[-1].item()
        self._optimiser = torch.optim.Adam(self._flow.parameters(), lr=RATE)
        self.parameters = sum(x.numel() for x in self._flow.parameters())

    def shift(self, offset: float) -> None:
        with torch.no_grad():  # nothing else has moved
            self._network.last_layer.bias[-1] = self._stop + offset

    def length(self) -> float:
        with torch.no_grad():
            paths = self._flow.sample_trajectories(self._env, n=DRAWS)
        return paths.terminating_idx.float().mean().item()

    def update(self, count: int) -> None:
        for _ in range(count):
            paths = self._flow.sample_trajectories(self._env, n=self.batch, save_logprobs=True)
            self._optimiser.zero_grad()
            self._flow.loss(self._env, paths, recalculate_all_logprobs=False).backward()
            self._optimiser.step()


if __name__ == "__main__":
    serve(Sampler, "torchgfn", "torch", "numpy")
