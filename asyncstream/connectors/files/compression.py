"""
Compressed lines: gzip, and zstd by the extra [zstd].

Both formats allow several compressed pieces one behind the other (gzip's members, zstd's frames), and what
reads them takes the whole for one file. So a sink ends a piece at each checkpoint, and can cut a file off
there as it cuts off lines.

There is no jumping into the midst of a piece: to go back means to read from the beginning again, except for
the last bytes, which are kept. So places stay what they are in a plain file, bytes before a line, and what
goes on from one reads what is before it once more.
"""

from __future__ import annotations

import io
import os
import zlib
from bisect import bisect_left
from collections import deque
from typing import Any, BinaryIO, Final, Literal, TypeAlias, cast

from asyncstream.errors import describe_error, module_of
from asyncstream.validation import choice

__all__ = ("Compressing", "Compression", "Decompressing", "compression_in", "compression_of", "unpacked")

Compression: TypeAlias = Literal["infer", "gzip", "zstd"] | None
"""How a file is compressed; "infer": its name tells, by `.gz` or `.zst`."""

_BY_ENDING: Final = {".gz": "gzip", ".zst": "zstd"}

_MAGIC: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""What their files begin with, and no text does."""

_BLOCK: Final = 16 * 1024
"""Bytes that are read in one go."""

_SLICE: Final = {"gzip": _BLOCK, "zstd": 512}
"""Bytes of these that are decompressed at a time; 16 MiB come of them at worst."""

_MUCH: Final = 1 << 20
"""Bytes that come of a block, from which on the rest of it waits: all of them are in memory."""

_KEPT: Final = 1 << 20
"""Bytes behind which going back means to begin anew."""

_LEVEL: Final = 6


def compression_of(compression: object, path: str) -> str | None:
    """
    How the file is compressed; None: it is not.

    Raises:
        PipelineError: if that is no compression.
        MissingExtra: if it is zstd, and what does that is not installed.
    """
    found: Any = choice("compression", compression, ("infer", "gzip", "zstd", None))
    if found == "infer":
        found = _BY_ENDING.get(os.path.splitext(path)[1].lower())
    if found == "zstd":
        _zstandard()
    return None if found is None else str(found)


def compression_in(file: BinaryIO) -> str | None:
    """How a file of lines is compressed, by what it begins with; None: it is not."""
    begin = file.read(4)
    return next((found for magic, found in _MAGIC.items() if begin.startswith(magic)), None)


def _zstandard() -> Any:
    return module_of("zstd", "zstandard", "zstd")


def _compressor(compression: str) -> Any:
    if compression == "gzip":
        return zlib.compressobj(_LEVEL, zlib.DEFLATED, 31)
    return _zstandard().ZstdCompressor().compressobj()


def _decompressor(compression: str) -> Any:
    if compression == "gzip":
        return zlib.decompressobj(31)
    return _zstandard().ZstdDecompressor().decompressobj()


class Compressing:
    """Writes to a file what is written to it, compressed."""

    def __init__(self, file: BinaryIO, compression: str) -> None:
        self._file = file
        self._compression = compression
        self._piece: Any = None

    def write(self, data: bytes) -> None:
        if self._piece is None:
            self._piece = _compressor(self._compression)
        if packed := self._piece.compress(data):
            self._file.write(packed)

    def finish(self) -> None:
        """End the piece that was begun: what was written can be read now."""
        piece, self._piece = self._piece, None
        if piece is not None:
            self._file.write(piece.flush())


class Decompressing(io.RawIOBase):
    """
    What a compressed file holds, as a file. If it is `complete`, a piece without its end is damage; otherwise
    it is still being written.
    """

    def __init__(self, file: BinaryIO, compression: str, *, complete: bool = True) -> None:
        self._file = file
        self._compression = compression
        self._complete = complete
        self._at = 0
        self._begin()

    def _begin(self) -> None:
        self._file.seek(0)
        self._rest = b""  # of the last block
        self._piece: Any = None
        self._padding = b""  # what may be between two pieces, and behind the last
        self._ends = [(0, 0)]  # bytes that came of so many bytes of the file
        self._chunks: deque[tuple[int, bytes]] = deque()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_CUR:
            offset += self._at
        elif whence != os.SEEK_SET:
            raise io.UnsupportedOperation("how much there is, only reading to the end tells")
        if offset < (self._chunks[0][0] if self._chunks else self._ends[-1][0]):
            self._begin()
        self._at = offset
        return offset

    def is_behind(self, offset: int) -> bool:
        """Decompress a part of what is before a place; False if all of that is, or there is no more."""
        until = min(offset, self._ends[-1][0] + _MUCH)
        while self._ends[-1][0] < until:
            if not self._decompress():
                return False
        return until < offset

    def packed_before(self, offset: int) -> int:
        """How many bytes of the file the first `offset` bytes came of, which were read."""
        return self._ends[min(bisect_left(self._ends, (offset,)), len(self._ends) - 1)][1]

    def readinto(self, buffer: Any) -> int:
        while self._at >= self._ends[-1][0]:
            if not self._decompress():
                return 0
        for begin, chunk in reversed(self._chunks):
            if begin <= self._at:
                data = chunk[self._at - begin : self._at - begin + len(buffer)]
                buffer[: len(data)] = data
                self._at += len(data)
                return len(data)
        raise AssertionError("what was not kept is read from the beginning again")

    def _decompress(self) -> bool:
        """Decompress the next block of the file, or a part of it; False at its end."""
        block = self._rest or self._file.read(_BLOCK)
        if not block:
            if self._piece is not None and self._complete:
                raise OSError(f"it ends in the midst of {self._compression} data; is it still being written?")
            return False
        parts: list[bytes] = []
        taken = size = 0
        step = _SLICE[self._compression]
        try:
            while taken < len(block) and size < _MUCH:
                parts += self._unpacked(block[taken : taken + step])
                taken = min(taken + step, len(block))
                size = sum(map(len, parts))
        except Exception as error:  # zlib and zstd have errors of their own
            raise OSError(
                f"damaged {self._compression} data behind byte {self._ends[-1][1]}: {describe_error(error)}"
            ) from error
        self._rest = block[taken:]
        begin, packed = self._ends[-1]
        self._ends.append((begin + size, packed + taken))
        if size:
            self._chunks.append((begin, b"".join(parts)))
            while len(self._chunks) > 1 and self._chunks[1][0] < begin - _KEPT:
                self._chunks.popleft()
        return True

    def _unpacked(self, block: bytes) -> Any:
        while block:
            if self._piece is None:
                block = block.lstrip(self._padding)
                if not block:
                    return
                self._piece = _decompressor(self._compression)
            yield self._piece.decompress(block)
            if not self._piece.eof:
                return
            block, self._piece = self._piece.unused_data, None
            if self._compression == "gzip":  # tapes and other blocks are filled up with zeros
                self._padding = b"\0"


def unpacked(file: BinaryIO, compression: str | None, *, complete: bool = True) -> BinaryIO:
    """What a file holds that may be compressed; closing it closes the file."""
    if compression is None:
        return file
    return cast(BinaryIO, io.BufferedReader(Decompressing(file, compression, complete=complete)))
