"""
Manifests under a key: who does not have the key cannot write one that is believed.

    magic       8 bytes, b"astrseal"
    seal        32 bytes, HMAC-SHA-256 of the rest with the key
    manifest    as without a key

A manifest names its large parts by digests of their bytes, so these are under the seal as well. A seal says
nothing of time: who can write to the store can put back an older checkpoint, as it was.
"""

from __future__ import annotations

import hmac
from typing import Final

from asyncstream.errors import CheckpointError, DamagedCheckpoint

__all__ = ("check_seal", "is_sealed", "seal", "unsealed")

_MAGIC: Final = b"astrseal"
_SEAL_BYTES: Final = 32
_START: Final = len(_MAGIC) + _SEAL_BYTES


def is_sealed(data: bytes) -> bool:
    """Whether these are the bytes of a manifest under a key."""
    return data.startswith(_MAGIC)


def seal(manifest: bytes, key: bytes | None) -> bytes:
    """The manifest under the key; as it is if there is none."""
    return manifest if key is None else _MAGIC + _seal_of(manifest, key) + manifest


def unsealed(data: bytes) -> bytes:
    """The manifest, unchecked: to be looked at, and not to be believed."""
    return data[_START:] if is_sealed(data) else data


def check_seal(data: bytes, key: bytes | None) -> None:
    """
    See whether a manifest was written with this key.

    Raises:
        DamagedCheckpoint: if it ends within the seal.
        CheckpointError: if it was written with another key, or with none, or with one that is not given.
    """
    if key is None and is_sealed(data):
        raise CheckpointError(
            "it was written with a key: pass Checkpoints(key=...), or --key-file in a shell"
        )
    if key is None:
        return
    if not is_sealed(data):
        raise CheckpointError(
            "it was written without a key, and is not trusted with key=: leave that out, or begin at the "
            "beginning, with restore='none'"
        )
    if len(data) < _START:
        raise DamagedCheckpoint(f"it ends after {len(data)} bytes, in its seal")
    if not hmac.compare_digest(data[len(_MAGIC) : _START], _seal_of(data[_START:], key)):
        raise CheckpointError(
            "its seal does not fit this key: it was written with another key, or without one"
        )


def _seal_of(manifest: bytes, key: bytes) -> bytes:
    return hmac.digest(key, manifest, "sha256")
