"""The bit sequences of Malkin et al. (2022): strings of bits near to one of sixty modes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..errors import require_whole
from .sequences import AbstractAppended, AbstractFilled, AbstractSequences, Sequence

_PIECES = ("00000000", "11111111", "11110000", "00001111", "00111100")


class AbstractBitSequences(AbstractSequences):
    r"""Strings of $n$ bits, made of words of $k$ bits; complete when no position is empty.

    $$\log R(x) = -\beta \min_m \mathrm{Hamming}(x, m) / n,$$

    where each mode $m$ is a row of $n / 8$ pieces, drawn with the seed from `00000000`,
    `11111111`, `11110000`, `00001111` and `00111100`. Modes of few pieces may repeat.
    """

    length: eqx.AbstractVar[int]
    """$n$, bits."""
    word: eqx.AbstractVar[int]
    """$k$, bits."""
    exponent: eqx.AbstractVar[float]
    r"""$\beta$."""
    modes: eqx.AbstractVar[int]
    """How many there are."""
    radius: eqx.AbstractVar[int | None]
    """A mode is found by strings at a distance below this, in bits; None for a quarter of $n$."""
    seed: eqx.AbstractVar[int]
    """Of the modes and of the test set."""

    def __check_init__(self):
        for name, least in {"length": 1, "word": 1, "modes": 1, "radius": 1, "seed": 0}.items():
            if (value := getattr(self, name)) is not None:
                require_whole(name, value, least)
        if self.length % 8:
            raise ValueError(f"length must be a positive multiple of 8, got {self.length}")
        if self.word > 16 or self.length % self.word:
            wanted = f"from 1 to 16 and divide length={self.length}"
            raise ValueError(f"word must be {wanted}, got {self.word}")
        if not 0 < self.exponent < float("inf"):
            raise ValueError(f"exponent must be positive and finite, got {self.exponent}")

    @property
    def num_letters(self) -> int:
        """$2^k$: a letter is a word, as a number with its first bit the most significant."""
        return 2**self.word

    @property
    def max_steps(self) -> int:
        return self.length // self.word

    def log_reward(self, state: Sequence) -> Float[Array, ""]:
        return -self.exponent * jnp.min(self._distances(state)) / self.length

    def log_partial(self, state: Sequence) -> Float[Array, ""]:
        """Of the positions that are filled, as if the empty ones agreed with the mode."""
        return self.log_reward(state)

    @property
    def num_modes(self) -> int:
        return self.modes

    def finds(self, state: Sequence) -> Bool[Array, " modes"]:
        return self._distances(state) < (self.radius or self.length // 4)

    def distance(self, one: Sequence, other: Sequence) -> Float[Array, ""]:
        """Hamming, in bits."""
        return jnp.sum(jax.lax.population_count(one.letters ^ other.letters)).astype(float)

    def test_set(self, num: int) -> Sequence:
        """Each mode with each number of random bits flipped, from 0 to $n - 1$.

        Those with fewer flips come first. A smaller set takes strings at equal intervals; there
        are no more than `modes * length`.
        """
        require_whole("num", num, 1)
        total = self.modes * self.length
        num = min(num, total)
        rng = np.random.default_rng((self.seed, 1))
        # In a random order among those with equally many flips: intervals then mix the modes.
        mode = rng.permuted(np.tile(np.arange(self.modes), (self.length, 1)), axis=1).ravel()
        flips = np.repeat(np.arange(self.length), self.modes)
        order = rng.permuted(np.tile(np.arange(self.length), (total, 1)), axis=1)
        chosen = np.arange(num) * total // num
        flipped = order[chosen] < flips[chosen, None]
        return Sequence(jnp.asarray(self._words(self.mode_bits()[mode[chosen]] ^ flipped)))

    def objects(self) -> Sequence:
        if self.length > 20:
            raise ValueError(f"length must be at most 20 to list all objects, got {self.length}")
        bits = np.arange(2**self.length)[:, None] >> np.arange(self.length)[::-1] & 1
        return Sequence(jnp.asarray(self._words(bits)))

    def mode_bits(self) -> Int[np.ndarray, "modes length"]:
        """The modes, bit by bit."""
        pieces = np.array([list(map(int, piece)) for piece in _PIECES], np.int32)
        rng = np.random.default_rng(self.seed)
        chosen = rng.integers(len(pieces), size=(self.modes, self.length // 8))
        return pieces[chosen].reshape(self.modes, self.length)

    def _words(self, bits: Int[np.ndarray, "n length"]) -> Int[np.ndarray, "n positions"]:
        values = 2 ** np.arange(self.word)[::-1]
        return (bits.reshape(len(bits), self.max_steps, self.word) @ values).astype(np.int32)

    def _distances(self, state: Sequence) -> Int[Array, " modes"]:
        """Bits in which the filled positions differ from each mode: looked up, in integers."""
        words = self._words(self.mode_bits()).T[:, None]
        differing = np.bitwise_count(words ^ np.arange(self.num_letters)[:, None]).astype(np.int8)
        table = jnp.asarray(np.pad(differing, ((0, 0), (0, 1), (0, 0))))  # empty: in none
        return jnp.sum(table[jnp.arange(self.max_steps), state.letters], axis=0, dtype=jnp.int32)


class BitSequences(AbstractFilled, AbstractBitSequences):
    """Fill any empty position with a word."""

    length: int = 120
    word: int = 8
    exponent: float = 3.0
    modes: int = 60
    radius: int | None = None
    seed: int = 0


class AppendedBitSequences(AbstractAppended, AbstractBitSequences):
    """Append words from left to right."""

    length: int = 120
    word: int = 8
    exponent: float = 3.0
    modes: int = 60
    radius: int | None = None
    seed: int = 0
