"""Metrics from samples, on any environment."""

from typing import Any

import jax
import numpy as np

from ..algorithm import Algorithm, TrainState, discovered, of_seed
from ..errors import require_whole
from ..metrics import eubo, sampled_metrics
from ..sampling import Buffer
from .base import AbstractWatcher, Line, check_every

_LOOK = 0x5A3
"""Sets the keys of draws apart from those of training."""


class Sampled(AbstractWatcher):
    r"""What can be said of a sampler without listing its objects (`metrics.sampled_metrics`).

    Estimates of the ELBO and of $\log Z$ with their standard errors, the effective share of the
    samples, residuals, lengths and rewards; the modes `discovered` in training where the
    environment lists them; on its test set, where it has one, the correlation of $\log q(x)$ with
    $\log R(x)$; and, with a buffer of objects, `replayed_eubo` over paths drawn backwards from
    these: an upper bound on $\log Z$ only as far as the buffer looks like the target.

    Attributes:
        every: updates from one look to the next.
        num: trajectories drawn at each look.
        test: objects of the test set.
        paths: backward paths to each of them, for $\log q(x)$.
        top: the best of the drawn objects, for their reward and diversity.
    """

    every: int | None = None
    num: int = 512
    test: int = 240
    paths: int = 10
    top: int = 100

    def __check_init__(self):
        check_every(self.every)
        for name, least in {"num": 2, "test": 1, "paths": 1, "top": 1}.items():
            require_whole(name, getattr(self, name), least)

    @property
    def draws(self) -> int:
        return self.num

    def __call__(self, algorithm: Algorithm, states: TrainState) -> Line:
        seeds = [self.of(algorithm, of_seed(states, seed)) for seed in range(len(states.step))]
        # A number that is not defined for some seed is left out for all.
        names = [name for name in seeds[0] if all(name in found for found in seeds)]
        line: Line = {name: [found[name] for found in seeds] for name in names}
        drawn = discovered(algorithm.env, states)
        return line if drawn is None else line | {"discovered": drawn.tolist()}

    def of(self, algorithm: Algorithm, state: TrainState) -> dict[str, float]:
        """Of one seed."""
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), _LOOK)
        draw_key, replay_key = jax.random.split(key)
        found = sampled_metrics(
            algorithm.env,
            state.flow,
            key=draw_key,
            num=self.num,
            paths=self.paths,
            test=self.test,
            top=self.top,
        )
        for buffer in _buffers(state.memory):
            kept = np.flatnonzero(np.asarray(buffer.stamps) > 0)
            if len(kept):
                picked = kept[np.arange(self.num) % len(kept)]
                objects = jax.tree.map(lambda x, at=picked: x[at], buffer.objects)
                bound = eubo(algorithm.env, state.flow, objects, key=replay_key)
                found |= {f"replayed_{name}": value for name, value in bound.items()}
        return {name: float(value) for name, value in found.items()}

    def note(self, line: Line) -> str:
        share = np.mean(line["effective_share"])
        return (
            f"ELBO {np.mean(line['elbo']):.4g}  log Z {np.mean(line['log_z']):.4g}  ESS {share:.0%}"
        )


def _buffers(memory: Any) -> list[Buffer]:
    def is_buffer(x: Any) -> bool:
        return isinstance(x, Buffer)

    return [x for x in jax.tree.leaves(memory, is_leaf=is_buffer) if is_buffer(x)]
