"""Runs that take hours, as single files small enough to be committed: no pickle, compressed.

A file is a zip archive of the record, the checkpoint and the arrays of a run's folder. Unpacked,
the run goes on as if it had never left.
"""

import zipfile
import zlib
from pathlib import Path
from typing import IO

from natgfn.errors import NatgfnError
from natgfn.training import ARRAYS, CHECKPOINT, RECORD, write_whole

MEMBERS = (RECORD, CHECKPOINT, ARRAYS)
LARGEST = 4 * 2**20
"""Bytes that a packed run may have."""
LARGEST_INSIDE = 16 * LARGEST
"""Bytes that its members may have, before anything is unpacked."""


def pack(folder: Path, path: Path) -> None:
    """Write the run in a folder as one file; a crash leaves the previous one in place."""

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in MEMBERS:
                if (folder / name).exists():
                    # Without the time of writing: the same run is the same file.
                    member = zipfile.ZipInfo(name)
                    archive.writestr(member, (folder / name).read_bytes(), zipfile.ZIP_DEFLATED)
        if file.tell() > LARGEST:
            raise NatgfnError(
                f"the run in {folder} is {file.tell():,} bytes when packed, more than the "
                f"{LARGEST:,} of a file to commit: use a smaller network or buffer"
            )

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, write)
    except OSError as error:
        raise NatgfnError(f"cannot pack a run into {path}: {error.strerror}") from error


def unpack(path: Path, folder: Path) -> None:
    """Make the folder of a run that `pack` wrote; whatever else an archive has is refused."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            known = {member.filename for member in members} <= set(MEMBERS)
            if not known or sum(member.file_size for member in members) > LARGEST_INSIDE:
                raise zipfile.BadZipFile("it holds something else")
            contents = {member.filename: archive.read(member) for member in members}
    except (OSError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise NatgfnError(
            f"{path} is not a packed run ({error}): restore it, or move it away to start over"
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    for name in MEMBERS[::-1]:
        if name in contents:
            write_whole(folder / name, lambda file, name=name: file.write(contents[name]))
