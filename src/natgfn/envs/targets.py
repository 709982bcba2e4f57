"""Rewards of points in space, for walks that end there."""

from abc import abstractmethod

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float


class AbstractTarget(eqx.Module):
    """A reward for each point, and which of them count as modes."""

    floor: eqx.AbstractVar[float]

    def __check_init__(self):
        for name, value in vars(self).items():
            if np.size(value) == 0 or not np.all(np.isfinite(value) & (np.asarray(value) > 0)):
                raise ValueError(f"{name} must be positive and finite, got {value}")

    def rewards(self, points: Float[np.ndarray, "n dims"]) -> Float[np.ndarray, " n"]:
        """Positive everywhere. In NumPy: it is made once, and ties must stay ties."""
        return self.floor + self.bumps(points)

    @abstractmethod
    def bumps(self, points: Float[np.ndarray, "n dims"]) -> Float[np.ndarray, " n"]:
        """The reward above the floor."""

    @abstractmethod
    def modes(self, rewards: Float[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        """Which of the points with these rewards are modes."""


class Gaussians(AbstractTarget):
    r"""$R(x) = R_0 + \sum_k e^{-|x - c_k|^2 / 2 \sigma^2}$, with centres on a circle.

    The circle lies in the plane of the first two coordinates. A tenth of the points are modes,
    those with the highest reward; of equals the first, because the paper counts 29 of 289,
    which no symmetric set has.

    Attributes:
        count: centres.
        radius: of their circle.
        width: $\sigma$.
        floor: $R_0$.
    """

    count: int = 8
    radius: float = 5.0
    width: float = 0.64
    floor: float = 1e-3

    def bumps(self, points: Float[np.ndarray, "n dims"]) -> Float[np.ndarray, " n"]:
        if points.shape[1] < 2:
            raise ValueError(f"Gaussians need 2 dimensions or more, got {points.shape[1]}")
        angles = 2 * np.pi * np.arange(self.count) / self.count
        centres = np.zeros((self.count, points.shape[1]))
        centres[:, :2] = self.radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        squares = ((points[:, None] - centres) ** 2).sum(axis=2)
        return np.exp(-squares / (2 * self.width**2)).sum(axis=1)

    def modes(self, rewards: Float[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        # Rounded, or the rounding of sums would decide between equals.
        order = np.argsort(-rewards.round(12), kind="stable")
        best = np.zeros(len(rewards), bool)
        best[order[: _tenth(rewards)]] = True
        return best


class Rings(AbstractTarget):
    r"""$R(x) = R_0 + \sum_k e^{-(|x| - \rho_k)^2 / 2 w^2}$.

    A tenth of the points are modes, those with the highest reward, and all that equal the last.

    Attributes:
        radii: $\rho_k$.
        width: $w$.
        floor: $R_0$.
    """

    radii: tuple[float, ...] = (2.0, 4.0, 6.0)
    width: float = 0.48
    floor: float = 1e-3

    def bumps(self, points: Float[np.ndarray, "n dims"]) -> Float[np.ndarray, " n"]:
        radius = np.sqrt((points**2).sum(axis=1))[:, None]
        return np.exp(-((radius - np.array(self.radii)) ** 2) / (2 * self.width**2)).sum(axis=1)

    def modes(self, rewards: Float[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        rounded = rewards.round(12)
        return rounded >= np.sort(rounded)[-_tenth(rewards)]


def _tenth(rewards: np.ndarray) -> int:
    return -(-len(rewards) // 10)
