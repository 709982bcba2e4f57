"""UAI files: factor graphs as text, and what is observed of them."""

from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from math import prod
from pathlib import Path

import numpy as np
from jaxtyping import Float

from ..errors import NatgfnError
from .graph import FactorGraph

_MOST_BYTES = 1 << 26
_MOST_AXES = 64  # of a NumPy array


def read_uai(
    path: str | Path, evidence: str | Path | None = None, *, max_bytes: int = _MOST_BYTES
) -> FactorGraph:
    """The factor graph of a `.uai` file, MARKOV or BAYES; both are products of their tables.

    The last variable of a scope is the fastest in its table, as the format has it; pyAgrum 3.3
    has another order for Markov networks and for variables with several parents, and its files do
    not say so. What follows `#`, and lines whose first word is `c`, are comments.

    Args:
        path: of the file.
        evidence: the path of an `.evid` file; its variables are observed (`FactorGraph.given`).
        max_bytes: the most that each file may have, and an array of one number for each value of
            each variable.

    Raises:
        NatgfnError: a file cannot be read, is too large or is not what the format says.
    """
    try:
        graph = _graph(_words(path, max_bytes), max_bytes)
    except ValueError as error:
        raise NatgfnError(f"{path} is not a UAI file: {error}") from error
    if evidence is None:
        return graph
    observed = read_evidence(evidence, max_bytes=max_bytes)
    try:
        return graph.given(observed)
    except ValueError as error:
        raise NatgfnError(f"{evidence} is no evidence for {path}: {error}") from error


def read_evidence(path: str | Path, *, max_bytes: int = _MOST_BYTES) -> dict[int, int]:
    """The observed value of each observed variable in an `.evid` file.

    The file has the number of observed variables, then each of them and its value. The number of
    samples, which must be 1, may come before: the numbers are then even in number, else odd.

    Raises:
        NatgfnError: as `read_uai`.
    """
    try:
        numbers = [_whole(word, "variables and values") for word in _words(path, max_bytes)]
        if len(numbers) % 2 == 0 and numbers[:1] == [1]:
            numbers = numbers[1:]
        if not numbers or len(numbers) != 1 + 2 * numbers[0]:
            wanted = "how many variables are observed, then each and its value, of one sample"
            start = " ".join(str(number) for number in numbers[:5])
            raise ValueError(f"expected {wanted}; got {len(numbers)} numbers, '{start} ...'")
        evidence = dict(zip(numbers[1::2], numbers[2::2], strict=True))
        if len(evidence) < numbers[0]:
            twice, _ = Counter(numbers[1::2]).most_common(1)[0]
            raise ValueError(f"variable {twice} is observed twice")
    except ValueError as error:
        raise NatgfnError(f"{path} is not a UAI evidence file: {error}") from error
    return evidence


def write_uai(graph: FactorGraph, path: str | Path) -> None:
    """Write a factor graph as a MARKOV file, which has no place for names.

    Raises:
        ValueError: a factor is not zero, but too large or too small for a number of the file.
        NatgfnError: the file cannot be written.
    """
    lines = ["MARKOV", str(graph.num_variables), " ".join(map(str, graph.cards))]
    lines += [str(len(graph.scopes))]
    lines += [" ".join(map(str, (len(scope), *scope))) for scope in graph.scopes]
    low, high = np.log(np.finfo(np.float64).tiny), np.log(np.finfo(np.float64).max)
    for number, (_, log_factor) in enumerate(graph.factors()):
        logs = log_factor.ravel()
        wrong = (logs > -np.inf) & ((logs < low) | (logs > high))
        if wrong.any():
            found = f"factor {number} has the logarithm {logs[wrong.argmax()]:.6g}"
            raise ValueError(f"{found}: expected {low:.6g} to {high:.6g}, or minus infinity")
        lines += ["", str(logs.size), " ".join(map(repr, np.exp(logs).tolist()))]
    try:
        Path(path).write_text("\n".join(lines) + "\n", encoding="ascii")
    except OSError as error:
        raise NatgfnError(f"cannot write {path}: {error.strerror}") from error


def _words(path: str | Path, max_bytes: int) -> Iterator[bytes]:
    """What white space separates in a file, without comments."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(max_bytes + 1)
    except OSError as error:
        raise NatgfnError(f"cannot read {path}: {error.strerror}; expected a file") from error
    if len(text) > max_bytes:
        raise NatgfnError(
            f"{path} has more than {max_bytes} bytes: a larger max_bytes would read it"
        )
    for line in BytesIO(text):
        words = line.partition(b"#")[0].split()
        if words[:1] != [b"c"]:
            yield from words


def _whole(word: bytes | None, what: str, low: int = 0, high: int = 10**18 - 1) -> int:
    """A word as a number from `low` to `high`."""
    if word is None:
        raise ValueError(f"it ends where {what} should be")
    if word.isdigit() and len(word) < 20 and low <= int(word) <= high:
        return int(word)
    raise ValueError(f"{what} must be from {low} to {high}, got {_shown(word)}")


def _shown(word: bytes) -> str:
    text = word[:20].decode("ascii", "backslashreplace")
    return repr(text + "..." if len(word) > 20 else text)


def _graph(words: Iterator[bytes], max_bytes: int) -> FactorGraph:
    kind = next(words, b"")
    if kind not in (b"MARKOV", b"BAYES"):
        raise ValueError(f"it must start with MARKOV or BAYES, got {_shown(kind)}")
    count = _whole(next(words, None), "the number of variables", 1, max_bytes)
    most = max_bytes // 8
    cards = tuple(
        _whole(next(words, None), f"the number of values of variable {v}", 1, most)
        for v in range(count)
    )
    if sum(cards) > most:
        raise ValueError(f"its variables have {sum(cards)} values, more than {most}")
    scopes, sizes = [], []
    for number in range(_whole(next(words, None), "the number of factors", 0, max_bytes)):
        what = f"the number of variables of factor {number}"
        axes = _whole(next(words, None), what, 0, _MOST_AXES)
        what = f"a variable of factor {number}"
        scopes.append(tuple(_whole(next(words, None), what, 0, count - 1) for _ in range(axes)))
        sizes.append(prod(cards[v] for v in scopes[-1]))
        if sizes[-1] > max_bytes:
            raise ValueError(f"factor {number} would have more than {max_bytes} entries")
    with np.errstate(divide="ignore"):
        log_table = np.log(_entries(list(words), sizes))
    return FactorGraph(cards, tuple(scopes), log_table)


def _entries(words: list[bytes], sizes: list[int]) -> Float[np.ndarray, " entries"]:
    """Of all factors; in the file, the number of entries of each comes before them."""
    numbers = np.fromiter(map(_number, words), np.float64, len(words))
    is_entry, start = np.ones(len(words), np.bool_), 0
    for number, size in enumerate(sizes):
        if start >= len(words):
            raise ValueError(f"it ends where the number of entries of factor {number} should be")
        if numbers[start] != size:
            said = _shown(words[start])
            raise ValueError(f"factor {number} must have {size} entries, the file says {said}")
        left = len(words) - start - 1
        if left < size:
            raise ValueError(f"it ends after {left} of {size} entries of factor {number}")
        is_entry[start] = False
        start += 1 + size
    if start < len(words):
        raise ValueError(f"it goes on after its last factor: {_shown(words[start])}")
    entries = numbers[is_entry]
    wrong = ~((entries >= 0) & (entries < np.inf))
    if wrong.any():
        number = np.searchsorted(np.cumsum(sizes), wrong.argmax(), side="right")
        found = f"factor {number} has {entries[wrong.argmax()]}"
        raise ValueError(f"{found}: expected a number that is finite and not negative")
    return entries


def _number(word: bytes) -> float:
    try:
        return float(word.replace(b"_", b"?"))  # Python reads 1_0 as ten
    except ValueError as error:
        raise ValueError(f"a table must have numbers, got {_shown(word)}") from error
