"""What training returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..envs.base import State
from ..metrics import evaluate
from ..policies import Flow
from ..sampling import OnPolicy, rollout
from ..statespace import StateSpace
from .algorithm import Algorithm, TrainState, of_seed

CERTIFICATE = "certificate"
"""Where a line of the record has its certificate, if it has one."""


@dataclass(frozen=True)
class Run:
    """A trained sampler, one for each seed, and the history of its training.

    Attributes:
        space: the environment, enumerated.
        algorithm: the compiled step.
        state: the training state; arrays have a leading axis of seeds.
        history: one entry an evaluation, as in the record on disk.
        configuration: what was run, as plain JSON.
        folder: where the run is kept, if anywhere.
    """

    space: StateSpace
    algorithm: Algorithm
    state: TrainState
    history: list[dict[str, Any]]
    configuration: dict[str, Any]
    folder: Path | None = None

    @property
    def steps(self) -> np.ndarray:
        """The updates at which the run was evaluated."""
        return np.array([line["step"] for line in self.history])

    @property
    def metrics(self) -> dict[str, Float[np.ndarray, "evaluations seeds"]]:
        """Every metric by name (`natgfn.metrics.evaluate`), with `train_loss`, `rejected`
        steps, and the modes `discovered` so far."""
        names = self.history[-1].keys() - {"step", "seconds", CERTIFICATE}
        return {
            name: np.array([line[name] for line in self.history], float) for name in sorted(names)
        }

    @property
    def certificates(self) -> dict[str, np.ndarray]:
        """Every number of the certificates by name, `[certificates, seeds]`, and their `step`."""
        lines = [line for line in self.history if CERTIFICATE in line]
        if not lines:
            return {}
        found = {
            name: np.array([line[CERTIFICATE][name] for line in lines])
            for name in lines[-1][CERTIFICATE]
        }
        return {"step": np.array([line["step"] for line in lines]), **found}

    @property
    def laws(self) -> Float[np.ndarray, "seeds terminals"]:
        """The terminal law of each seed, exactly."""
        return evaluate(self.space, self.state.flow)[1]

    def flow(self, seed: int = 0) -> Flow:
        """The policies and $\\log Z$ of one seed."""
        return of_seed(self.state.flow, seed)

    def sample(self, num: int, *, seed: int = 0, key: int = 0) -> State:
        """Draw objects: terminal states of the environment along a leading axis."""
        paths = rollout(
            self.space, self.flow(seed).forward, OnPolicy(), num, key=jax.random.key(key)
        )
        return jax.tree.map(lambda x: jnp.asarray(x)[paths.last], self.space.states)

    def plot(self, path: str | Path) -> Path:
        """Draw the learned law beside the target, and the divergence over training."""
        from ..report.figures import draw_run

        return draw_run(self, Path(path))
