"""Snappy and deflate as the protocol speaks them: bytes in, bytes out, either end.

A codec is one direction pair of one connection: `encode` what is sent, `decode` what arrives. Each `encode` ends in a
flush, so the peer can decode all of it at once. `pieces` decodes into pieces of at most `PIECE` bytes, so that a bomb
costs one piece at a time.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final

try:
    import cramjam
except ImportError:  # an extra: nobody is offered snappy then
    cramjam = None  # type: ignore[assignment]

from lapwing import kernel
from lapwing.errors import ProtocolError

PIECE: Final = 1 << 18  # the most that `pieces` yields at once
OUTPUT_LIMIT: Final = 64 << 20  # what one `decode` may become

STREAM_ID: Final = b"\xff\x06\x00\x00sNaPpY"
BLOCK: Final = 65536  # uncompressed bytes in a snappy chunk, at most
LARGEST_CHUNK: Final = 4 + 76490  # checksum, and a block that snappy could not shorten
_TINY: Final = 17  # snappy writes shorter input as a literal, longer than it was
_MASK_DELTA: Final = 0xA282EAD8

_PLAIN_HEAD: Final = struct.Struct("<II")  # type and 24-bit length in one, masked checksum


class CompressionError(ProtocolError):
    """The compressed stream is wrong; nothing after this point can be decoded."""

    def __init__(self, text: str) -> None:
        super().__init__("E_INVALID", text)


def masked_crc(data: bytes | memoryview) -> int:
    """Return the checksum of a snappy chunk: CRC-32C, rotated and moved as the framing format asks."""
    crc = kernel.crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


class SnappyCodec:
    """The snappy framing format, in both directions."""

    __slots__ = ("_begun", "_kept", "_output_limit", "_welcomed")

    def __init__(self, output_limit: int = OUTPUT_LIMIT) -> None:
        self._begun = False  # we have sent our stream identifier
        self._welcomed = False  # the peer has sent its own
        self._kept = b""  # the torn chunk at the end of what arrived
        self._output_limit = output_limit

    def encode(self, data: bytes) -> bytes:
        """Return all of `data` as chunks of at most 64 KiB, the stream identifier before the first."""
        parts: list[bytes | memoryview] = []
        if not self._begun:
            self._begun = True
            parts.append(STREAM_ID)
        size = len(data)
        if size <= BLOCK:
            if size:
                self._chunk(data, parts)
        else:
            view = memoryview(data)
            for start in range(0, size, BLOCK):
                self._chunk(view[start : start + BLOCK], parts)
        return b"".join(parts)

    @staticmethod
    def _chunk(block: bytes | memoryview, parts: list[bytes | memoryview]) -> None:
        size = len(block)
        if size >= _TINY:
            compressed = bytes(cramjam.snappy.compress_raw(block))
            if len(compressed) < size - size // 8:  # less is not worth the peer's time
                parts.append(_PLAIN_HEAD.pack((len(compressed) + 4) << 8, masked_crc(block)))
                parts.append(compressed)
                return
        parts.append(_PLAIN_HEAD.pack((size + 4) << 8 | 1, masked_crc(block)))
        parts.append(block)

    def decode(self, data: bytes) -> bytes:
        """Return the content of every whole chunk that is there."""
        return _bounded(self.pieces(data), self._output_limit)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the same in pieces; small chunks are joined."""
        parts: list[bytes] = []
        size = 0
        for content in self._contents(data):
            if size + len(content) > PIECE:
                yield b"".join(parts)
                parts, size = [], 0
            parts.append(content)
            size += len(content)
        if size:
            yield b"".join(parts)

    def _contents(self, data: bytes) -> Iterator[bytes]:
        data = self._kept + data if self._kept else data
        start, stop = 0, len(data)
        try:
            while stop - start >= 4:
                kind = data[start]
                length = int.from_bytes(data[start + 1 : start + 4], "little")
                self._check(kind, length)
                end = start + 4 + length
                if end > stop:
                    break
                chunk = data[start + 4 : end]
                start = end
                if kind <= 1:
                    yield self._content(kind, chunk)
                elif kind == 0xFF:
                    if chunk != STREAM_ID[4:]:
                        raise CompressionError("snappy identifier is not sNaPpY")
                    self._welcomed = True
        finally:
            self._kept = data[start:]

    def _check(self, kind: int, length: int) -> None:
        if not self._welcomed and kind != 0xFF:
            raise CompressionError(f"snappy stream begins with chunk type {kind:#04x}, expected its identifier")
        if length > LARGEST_CHUNK or (kind <= 1 and length < 4):  # of chunks to skip too: they are kept until whole
            raise CompressionError(f"snappy chunk of {length} bytes, expected 4 to {LARGEST_CHUNK}")
        if 2 <= kind <= 0x7F:
            raise CompressionError(f"snappy chunk of unknown type {kind:#04x}")
        if kind == 0xFF and length != 6:
            raise CompressionError(f"snappy identifier of {length} bytes, expected 6")

    @staticmethod
    def _content(kind: int, chunk: bytes) -> bytes:
        claimed = int.from_bytes(chunk[:4], "little")
        if kind == 1:
            content = chunk[4:]
            size = len(content)
        else:
            try:
                size = int(cramjam.snappy.decompress_raw_len(chunk[4:]))
                content = bytes(cramjam.snappy.decompress_raw(chunk[4:])) if size <= BLOCK else b""
            except cramjam.DecompressionError as error:
                raise CompressionError(f"snappy chunk does not decompress: {error}") from error
        if size > BLOCK:
            raise CompressionError(f"snappy chunk of {size} uncompressed bytes, at most {BLOCK} allowed")
        if masked_crc(content) != claimed:
            raise CompressionError("snappy chunk does not match its checksum")
        return content


class DeflateCodec:
    """Raw deflate (RFC 1951, no header), sync-flushed after every `encode`."""

    __slots__ = ("_deflate", "_inflate", "_output_limit")

    def __init__(self, level: int = 6, output_limit: int = OUTPUT_LIMIT) -> None:
        self._deflate = zlib.compressobj(level, zlib.DEFLATED, -15)
        self._inflate = zlib.decompressobj(-15)
        self._output_limit = output_limit

    def encode(self, data: bytes) -> bytes:
        """Return all of `data`, ending in an empty sync block."""
        return self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes) -> bytes:
        """Return the part of the stream that `data` completes."""
        return _bounded(self.pieces(data), self._output_limit)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the same, a piece at a time."""
        inflate = self._inflate
        data = inflate.unconsumed_tail + data if inflate.unconsumed_tail else data
        while True:
            if inflate.eof:
                if data:
                    raise CompressionError("bytes after the end of the deflate stream")
                return
            try:
                piece = inflate.decompress(data, PIECE)
            except zlib.error as error:
                raise CompressionError(f"deflate stream is broken: {error}") from error
            if piece:
                yield piece
            data = inflate.unconsumed_tail or inflate.unused_data
            if not data and len(piece) < PIECE:
                return


Codec = SnappyCodec | DeflateCodec


def _bounded(pieces: Iterator[bytes], limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise CompressionError(f"compressed data grows past {limit} bytes in one read")
        parts.append(piece)
    return parts[0] if len(parts) == 1 else b"".join(parts)
