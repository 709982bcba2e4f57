"""Whole training states on disk: written atomically, read without pickle.

A file is a zip archive, and its members have checksums; they are not compressed, so that no file
is larger in memory than on disk.
"""

import hashlib
import json
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import equinox as eqx
import jax
import numpy as np

from ..errors import NatgfnError
from .files import write_whole

_FORMAT = "natgfn-checkpoint-2"

T = TypeVar("T")


def fingerprint(configuration: Any) -> str:
    """Sixteen hex digits that stand for a configuration."""
    text = json.dumps(configuration, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Damaged(NatgfnError):
    """A checkpoint that is not there, or not what was written."""


def save(path: Path, state: Any, configuration: Any, *, earlier: bool = False) -> None:
    """Write the arrays of `state`. A crash or a full disk leaves the previous file in place."""
    arrays = {
        jax.tree_util.keystr(where): np.asarray(leaf)
        for where, leaf in jax.tree_util.tree_leaves_with_path(eqx.filter(state, eqx.is_array))
    }
    header = np.array([_FORMAT, fingerprint(configuration)])
    write(path, {"header": header, **arrays}, earlier=earlier)


def write(path: Path, arrays: dict[str, np.ndarray], *, earlier: bool = False) -> None:
    """Write arrays by name: the whole file, or none of it."""
    try:
        write_whole(
            path, lambda file: np.savez(file, allow_pickle=False, **arrays), earlier=earlier
        )
    except OSError as error:
        kept = f"; the last good checkpoint, {path}, is unchanged" if path.exists() else ""
        raise NatgfnError(f"cannot write a checkpoint: {_reason(error)}{kept}") from error


def read(path: Path) -> dict[str, np.ndarray]:
    """What `write` wrote."""
    try:
        with path.open("rb") as file:
            _require_honest(file, path.stat().st_size)
            with np.load(file, allow_pickle=False) as archive:
                # Of a foreign archive, a member may be anything.
                return {name: np.asarray(archive[name]) for name in archive.files}
    except FileNotFoundError as error:
        raise Damaged(f"no checkpoint at {path}") from error
    except Exception as error:  # a damaged or foreign file makes NumPy raise almost anything
        raise Damaged(
            f"{path} is not a whole checkpoint (truncated, or some other file): "
            "restore it, or delete it to start over"
        ) from error


def _require_honest(file: IO[bytes], size: int) -> None:
    """Refuse an archive, before it is read, that would be larger than its file."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > size:
            raise ValueError("it declares more than it holds")
        for member in members:
            with archive.open(member) as inside:
                version = np.lib.format.read_magic(inside)
                if version != (1, 0):
                    raise ValueError("it was not written by natgfn")
                shape, _, kind = np.lib.format.read_array_header_1_0(inside)
                if math.prod(shape) * kind.itemsize > member.file_size:
                    raise ValueError("an array declares more than it holds")
    file.seek(0)


def load(path: Path, like: T, configuration: Any, *, continues: Sequence[str] = ()) -> T:
    """Read what `save` wrote into a state of the same structure.

    Args:
        path: the file.
        like: a state of that structure.
        configuration: the one that it was saved with;
        continues: or one of those that have these fingerprints.
    """
    arrays = read(path)
    header = np.asarray(arrays.pop("header", ()))
    if header.shape != (2,) or header[0] != _FORMAT:
        raise Damaged(f"{path} is not a natgfn checkpoint of this version ({_FORMAT})")
    if header[1] not in (fingerprint(configuration), *continues):
        raise NatgfnError(
            f"{path} belongs to another configuration: give the run a new folder, or go back to "
            "the configuration it was started with"
        )
    dynamic, static = eqx.partition(like, eqx.is_array)
    leaves, structure = jax.tree_util.tree_flatten_with_path(dynamic)
    if {jax.tree_util.keystr(where) for where, _ in leaves} != set(arrays):
        raise Damaged(f"{path} holds other arrays than this run: it was made by another version")
    restored = []
    for where, leaf in leaves:
        array = arrays[jax.tree_util.keystr(where)]
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise Damaged(
                f"{path}: {jax.tree_util.keystr(where)} has shape {array.shape} and type "
                f"{array.dtype}, expected {leaf.shape} and {leaf.dtype}"
            )
        restored.append(jax.numpy.asarray(array))
    return eqx.combine(jax.tree.unflatten(structure, restored), static)


def _reason(error: OSError) -> str:
    return f"{error.strerror or error} ({error.filename})" if error.filename else str(error)
