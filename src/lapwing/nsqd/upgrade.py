"""TLS, snappy and deflate on a live connection: layers that turn bytes into other bytes."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

from lapwing.net.tls import common_name

if TYPE_CHECKING:
    from lapwing.wire.nsq.compression import Codec
    from lapwing.wire.nsq.identify import ClientSettings

_PIECE: Final = 1 << 18


class Layer(Protocol):
    """One layer around a connection: TLS or a compression."""

    def receive(self, data: bytes) -> Iterator[bytes]:
        """Yield the content of the peer's bytes, in pieces."""

    def send(self, data: bytes) -> bytes:
        """Return the bytes that carry `data` to the peer."""


class Compressed:
    """A snappy or deflate layer."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def receive(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed content in pieces, so that a bomb costs one piece at a time."""
        return self._codec.pieces(data)

    def send(self, data: bytes) -> bytes:
        """Return `data`, compressed and flushed."""
        return self._codec.encode(data)


def compression(settings: ClientSettings) -> Compressed | None:
    """Return the layer for the compression that a client was granted."""
    from lapwing.wire.nsq.compression import DeflateCodec, SnappyCodec  # not while starting: few ask for them

    if settings.snappy:
        return Compressed(SnappyCodec())
    return Compressed(DeflateCodec(settings.deflate_level)) if settings.deflate else None


class Encrypted:
    """The server's end of TLS. Call `handshake` until it is done, then `receive` and `send`."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.over = False  # the client sends no more

    def handshake(self, data: bytes) -> tuple[bool, bytes]:
        """Return whether the handshake is done, and the bytes to send. Raises `ssl.SSLError`; then send `alert`."""
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False, self._outgoing.read()
        return True, self._outgoing.read()

    @property
    def alert(self) -> bytes:
        """The alert after a failed handshake."""
        return self._outgoing.read()

    def receive(self, data: bytes) -> Iterator[bytes]:
        """Yield the decrypted content in pieces. Raises `ssl.SSLError`."""
        if data:
            self._incoming.write(data)
        while True:
            try:
                piece = self._tls.read(_PIECE)
            except ssl.SSLWantReadError:
                return
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                self.over = True
                return
            if not piece:
                self.over = True
                return
            yield piece

    def send(self, data: bytes) -> bytes:
        """Return `data` encrypted, with the messages of TLS itself."""
        if data:
            self._tls.write(data)
        return self._outgoing.read()

    @property
    def version(self) -> str:
        """The version as NSQ shows it: `TLS1.0` to `TLS1.3`."""
        name = self._tls.version() or ""
        return "TLS1.0" if name == "TLSv1" else name.replace("TLSv", "TLS")

    @property
    def cipher(self) -> str:
        """The name of the cipher suite."""
        chosen = self._tls.cipher()
        return chosen[0] if chosen else ""

    @property
    def protocol(self) -> str:
        """The protocol that ALPN chose, mostly none."""
        return self._tls.selected_alpn_protocol() or ""

    @property
    def common_name(self) -> str:
        """The CN of the client's certificate, if it has one."""
        return common_name(self._tls.getpeercert())


class Layers(list[Layer]):
    """The layers around one connection, the outermost first."""

    def receive(self, data: bytes) -> Iterator[bytes]:
        """Yield the content of the peer's bytes inside all layers, in pieces."""
        return _through(data, self)

    def send(self, data: bytes) -> bytes:
        """Return the bytes that carry `data` to the peer."""
        for layer in reversed(self):
            data = layer.send(data)
        return data

    @property
    def tls(self) -> Encrypted | None:
        """The outermost layer, if it is TLS."""
        first = self[0]
        return first if isinstance(first, Encrypted) else None


def _through(data: bytes, layers: list[Layer]) -> Iterator[bytes]:
    if not layers:
        yield data
        return
    for piece in layers[0].receive(data):
        yield from _through(piece, layers[1:])
