"""States as rows of machine words: to store them, to compare them, to number them."""

from itertools import accumulate
from math import prod

import jax
import numpy as np
from jaxtyping import Int, UInt64

from ..envs import AbstractEnv, State


def pack(states: State) -> UInt64[np.ndarray, "states words"]:
    """The bytes of each state, all leaves side by side, filled up with zeros."""
    leaves = [np.ascontiguousarray(x) for x in jax.tree.leaves(states)]
    if any(not (np.issubdtype(x.dtype, np.integer) or x.dtype == bool) for x in leaves):
        raise ValueError("a state must be made of integer or boolean arrays to be enumerated")
    columns = [x.reshape(len(x), prod(x.shape[1:])).view(np.uint8) for x in leaves]
    ends = list(accumulate(column.shape[1] for column in columns))
    rows = np.zeros((len(leaves[0]), -(-ends[-1] // 8)), np.uint64)
    for start, end, column in zip([0, *ends], ends, columns, strict=False):
        rows.view(np.uint8)[:, start:end] = column
    return rows


def unpack(like: State, rows: UInt64[np.ndarray, "states words"]) -> State:
    """The states that `pack` made rows of; `like` is one state, or the shapes of one."""
    shapes, structure = jax.tree.flatten(like)
    ends = list(accumulate(prod(x.shape) * x.dtype.itemsize for x in shapes))
    parts = (rows.view(np.uint8)[:, a:b] for a, b in zip([0, *ends], ends, strict=False))
    leaves = [
        np.ascontiguousarray(part).view(x.dtype).reshape(len(rows), *x.shape)
        for part, x in zip(parts, shapes, strict=True)
    ]
    return jax.tree.unflatten(structure, leaves)


def describe(env: AbstractEnv, row: UInt64[np.ndarray, " words"]) -> str:
    """One packed state as a person would write it."""
    return repr(jax.tree.map(lambda x: x[0].tolist(), unpack(jax.eval_shape(env.init), row[None])))


class Numbers:
    """Distinct rows, numbered from 0 as they come.

    A hash table with linear probing, at most half full, in which the rows of a block look for
    their places together.
    """

    def __init__(self, words: int):
        self._rows = np.empty((1, words), np.uint64)
        self._places = np.full(2, -1)  # the number of the row in each place, -1 where it is free
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> UInt64[np.ndarray, "count words"]:
        """The rows by number."""
        return self._rows[: self._count]

    def of(self, rows: UInt64[np.ndarray, "n words"]) -> Int[np.ndarray, " n"]:
        """The number of each row; those that are new get the next ones."""
        self._make_room(len(rows))
        numbers = np.empty(len(rows), np.int64)
        left, place = np.arange(len(rows)), self._home(rows)
        while len(left):
            free = self._places[place] < 0
            self._add(rows, left[free], place[free])
            here = self._places[place]
            same = (self._rows[here] == rows[left]).all(axis=1)
            numbers[left[same]] = here[same]
            left, place = left[~same], self._next(place[~same])
        return numbers

    def _add(self, rows: np.ndarray, index: np.ndarray, place: np.ndarray) -> None:
        """Give each of these free places to one of the rows that want it."""
        self._places[place] = index
        won = self._places[place] == index
        index, place = index[won], place[won]
        end = self._count + len(index)
        self._places[place] = np.arange(self._count, end)
        self._rows[self._count : end] = rows[index]
        self._count = end

    def _make_room(self, more: int) -> None:
        """Double the table until `more` rows fit."""
        size = len(self._rows)
        while size < self._count + more:
            size *= 2
        if size == len(self._rows):
            return
        rows = np.empty((size, self._rows.shape[1]), np.uint64)
        rows[: self._count] = self.rows
        self._rows, self._places = rows, np.full(2 * size, -1)
        left, place = np.arange(self._count), self._home(self.rows)
        while len(left):
            free = self._places[place] < 0
            self._places[place[free]] = left[free]
            lost = self._places[place] != left
            left, place = left[lost], self._next(place[lost])

    def _home(self, rows: UInt64[np.ndarray, "n words"]) -> Int[np.ndarray, " n"]:
        """Where the search for each row begins."""
        return (_hash(rows) & np.uint64(len(self._places) - 1)).astype(np.int64)

    def _next(self, place: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        return (place + 1) & (len(self._places) - 1)


def _hash(rows: UInt64[np.ndarray, "n words"]) -> UInt64[np.ndarray, " n"]:
    """64 well-mixed bits a row: a product and a shift a word, then splitmix64's finaliser."""
    key = np.zeros(len(rows), np.uint64)
    for word in rows.T:
        key = (key ^ word) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(32)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))
