"""
Whether a file is still the one that was read or written up to some byte.

A position in a file means something only in that file. So it goes along with a fingerprint of what is before
it: of the file's first bytes and of the last ones before the position. Both stay as they are while the file
is appended to, and change when it is rotated, replaced, cut or rewritten. What lies between the two is not
looked at: the fingerprint of a file of any size takes two short reads. Inode and size are hints only: a file
that was copied is the same file, and a new one may get the inode of an old one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

from asyncstream.connectors.files.storage import size_of

__all__ = ("EXTENT", "changed_at", "difference", "fingerprint", "has_shrunk")

EXTENT: Final = 4096
"""Bytes that are looked at, at either end of what is before a position."""


def fingerprint(file: BinaryIO, offset: int, head: str | None = None) -> dict[str, Any]:
    """
    What a position keeps of the first `offset` bytes of `file`, whose own place stays where it is.

    Args:
        file: open to read.
        offset: a number of bytes.
        head: what is kept of the first `EXTENT` bytes, if that is known: of a file that cannot have changed.
    """
    inode = _inode(file)
    known = {**_digests(file, offset, head), "size": size_of(file)}
    return known if inode is None else known | {"inode": inode}


def difference(file: BinaryIO, offset: int, known: Mapping[str, Any]) -> str | None:
    """
    Why the first `offset` bytes of `file` are not those that `known` is the fingerprint of; None if they are.

    Args:
        file: its own place stays where it is.
        offset: a number of bytes.
        known: a fingerprint, or something without one: then the size alone is looked at.
    """
    size = size_of(file)
    if size < offset:
        found = f"it has only {size}"
    elif "head" not in known:
        return None
    else:
        digests = _digests(file, offset)
        if digests["head"] != known["head"]:
            found = "it begins with other bytes than it did"
        elif digests["tail"] != known["tail"]:
            found = "the bytes before that place are not those that were there"
        else:
            return None
    if "inode" not in known or (inode := _inode(file)) is None:
        return found
    is_same = known["inode"] == inode
    return f"{found}; the file was {'changed where it is' if is_same else 'replaced by another one'}"


def has_shrunk(file: BinaryIO, known: Mapping[str, Any]) -> bool:
    """Whether the file was larger when the fingerprint was taken."""
    return size_of(file) < int(known.get("size", 0))


def changed_at(file: BinaryIO) -> tuple[int, ...] | None:
    """What is another one when the file has been written to; None of an object, which stays as it is."""
    try:
        found = os.fstat(file.fileno())
    except (OSError, AttributeError):
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _inode(file: BinaryIO) -> str | None:
    try:
        return f"{os.fstat(file.fileno()).st_ino:x}"
    except (OSError, AttributeError):  # of an object store
        return None


def _digests(file: BinaryIO, offset: int, head: str | None = None) -> dict[str, str]:
    extent = min(EXTENT, offset)
    unbuffered = getattr(file, "raw", file)  # what a buffer holds may not be what is there by now
    place = unbuffered.tell()
    try:
        return {
            "head": head or _digest(unbuffered, 0, extent),
            "tail": _digest(unbuffered, offset - extent, extent),
        }
    finally:
        unbuffered.seek(place)


def _digest(file: BinaryIO, begin: int, length: int) -> str:
    file.seek(begin)
    return hashlib.blake2b(file.read(length), digest_size=16).hexdigest()
