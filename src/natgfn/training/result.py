"""What training returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from ..algorithm import Algorithm, TrainState, of_seed
from ..envs import State
from ..errors import require_whole
from ..metrics import evaluate
from ..policies import Flow
from ..sampling import draw_objects
from ..statespace import StateSpace, require_space
from ..watch import CERTIFICATE
from .record import by_name, unknown_in
from .setup import Setup


@dataclass(frozen=True)
class Run:
    """A trained sampler, one for each seed, and the history of its training.

    Attributes:
        setup: what was run, with nothing left open.
        algorithm: the compiled step.
        state: the training state; arrays have a leading axis of seeds.
        history: the lines of the record.
        folder: where the run is kept, if anywhere.
    """

    setup: Setup
    algorithm: Algorithm
    state: TrainState
    history: list[dict[str, Any]]
    folder: Path | None = None

    @property
    def space(self) -> StateSpace:
        """The environment, enumerated; a ValueError if it is not."""
        return require_space(self.setup.env, "this", "run.sample and the metrics of watch.Sampled")

    @property
    def configuration(self) -> dict[str, Any]:
        """What was run, as plain JSON."""
        return self.setup.configuration()

    @property
    def steps(self) -> Int[np.ndarray, " lines"]:
        """The updates made before each line of the record."""
        return np.array([line["step"] for line in self.history])

    @property
    def metrics(self) -> dict[str, Float[np.ndarray, "lines seeds"]]:
        """Every number that the watchers found, by name, with `train_loss` and `rejected` steps.

        NaN where a line has no such number: a watcher may look less often than others.
        """
        return by_name(self.history)

    @property
    def unknown(self) -> dict[str, int]:
        """How many numbers of the record are NaN, by name, of those that have any."""
        return unknown_in(self.history)

    @property
    def certificates(self) -> dict[str, np.ndarray]:
        """Every number of the certificates by name, `[certificates, seeds]`, and their `step`.

        NaN where a certificate has no such number.
        """
        lines = [line for line in self.history if CERTIFICATE in line]
        if not lines:
            return {}
        steps = np.array([line["step"] for line in lines])
        return {"step": steps, **by_name([line[CERTIFICATE] for line in lines])}

    @property
    def laws(self) -> Float[np.ndarray, "seeds terminals"]:
        """The terminal law of each seed, exactly, where the environment is enumerated."""
        return evaluate(self.space, self.state.flow)[1]

    def flow(self, seed: int = 0) -> Flow:
        """The policies and $\\log Z$ of one seed, counted from 0."""
        if not 0 <= seed < self.setup.seeds:
            raise ValueError(f"seed must be from 0 to {self.setup.seeds - 1}, got {seed}")
        return of_seed(self.state.flow, seed)

    def sample(self, num: int, *, seed: int = 0, key: int = 0) -> State:
        """Draw objects: terminal states of the environment along a leading axis."""
        require_whole("num", num, 1)
        env = self.setup.env
        drawn = draw_objects(env, self.flow(seed).forward, num, key=jax.random.key(key))
        if not isinstance(env, StateSpace):
            return drawn
        return jax.tree.map(lambda x: jnp.asarray(x)[drawn], env.states)

    def plot(self, path: str | Path) -> Path:
        """Draw the learned law beside the target, or estimates of it, over training."""
        from ..figures import draw_laws, draw_record  # matplotlib takes long to import

        if isinstance(self.setup.env, StateSpace):
            return draw_laws(
                np.exp(self.space.log_target), self.laws, self.steps, self.metrics, Path(path)
            )
        return draw_record(self.steps, self.metrics, Path(path))

    def report(self, path: str | Path) -> Path:
        """Write a page about the run: one HTML file, to be opened in any browser."""
        from ..report import write_page
        from .reporting import subject_of

        return write_page([subject_of(self)], path)
