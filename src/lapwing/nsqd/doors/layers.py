"""TLS, snappy and deflate on a live connection: layers that turn bytes into other bytes."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lapwing.net.sockets.tls import common_name

if TYPE_CHECKING:
    from lapwing.wire.nsq.compression import Codec
    from lapwing.wire.nsq.identify import ClientSettings

_PIECE: Final = 1 << 18  # bytes that are decrypted at a time
_DECRYPTED: Final = memoryview(bytearray(_PIECE))  # of one connection at a time: each piece is copied from here


def compression(settings: ClientSettings) -> Codec | None:
    """Return the layer for the compression that a client was granted."""
    from lapwing.wire.nsq.compression import DeflateCodec, SnappyCodec  # not while starting: few ask for them

    if settings.snappy:
        return SnappyCodec()
    return DeflateCodec(settings.deflate_level) if settings.deflate else None


class Encrypted:
    """The server's end of TLS. Call `handshake` until it is done, then `pieces` and `encode`."""

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

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the decrypted content in pieces of many records: a client sends each FIN in its own.

        Raises `ssl.SSLError`, but yields what came before the error first.
        """
        if data:
            self._incoming.write(data)
        while not self.over:
            size, error = self._decrypt()
            if size:
                yield _DECRYPTED[:size].tobytes()
            if error is not None:
                raise error
            if size < _PIECE:
                return

    def _decrypt(self) -> tuple[int, ssl.SSLError | None]:
        """Decrypt what is there into the shared buffer; return how many bytes that is, and the error that ended it."""
        read, incoming, pending = self._tls.read, self._incoming, self._tls.pending
        size = 0
        try:
            while size < _PIECE and (incoming.pending or pending()):
                count = read(_PIECE - size, _DECRYPTED[size:])
                if not count:
                    self.over = True
                    break
                size += int(count)
        except ssl.SSLWantReadError:
            pass  # the rest of a record is on its way
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self.over = True
        except ssl.SSLError as error:
            return size, error
        return size, None

    def encode(self, data: bytes) -> bytes:
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


class Layers(list["Encrypted | Codec"]):
    """The layers around one connection, the outermost first: TLS and a compression."""

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the content of the peer's bytes inside all layers, in pieces."""
        return _through(data, self)

    def encode(self, data: bytes) -> bytes:
        """Return the bytes that carry `data` to the peer."""
        for layer in reversed(self):
            data = layer.encode(data)
        return data

    @property
    def tls(self) -> Encrypted | None:
        """The outermost layer, if it is TLS."""
        first = self[0]
        return first if isinstance(first, Encrypted) else None


def _through(data: bytes, layers: list[Encrypted | Codec]) -> Iterator[bytes]:
    if not layers:
        yield data
        return
    for piece in layers[0].pieces(data):
        yield from _through(piece, layers[1:])
