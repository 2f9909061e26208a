"""A connection of a client to a server that may be killed."""

import socket
import struct

LOST = (OSError, EOFError)  # what a client sees of a server that was killed


class Talk:
    """A connection of a client that knows how to publish and consume, and no more."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._file = self._socket.makefile("rb")
        try:
            self.send(b"  V2")
        except OSError:
            self.close()  # the server was killed in between
            raise

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def frame(self) -> tuple[int, bytes]:
        head = self._file.read(8)
        if len(head) < 8:
            raise EOFError
        size, kind = struct.unpack(">II", head)
        payload = self._file.read(size - 4)
        if len(payload) < size - 4:
            raise EOFError
        return kind, payload

    def close(self) -> None:
        self._file.close()
        self._socket.close()
