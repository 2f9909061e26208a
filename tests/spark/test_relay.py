"""The process behind a connection: whom a test kills in the middle of a request."""

import contextlib
import socket
import subprocess
import sys

from relay import owner

CLIENT = """
import socket, sys
client = socket.socket()
client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
client.bind(("127.0.0.1", int(sys.argv[1])))
client.connect(("127.0.0.1", int(sys.argv[2])))
sys.stdin.read()
"""


def test_the_owner_of_a_connection_is_found_though_others_have_its_port():
    doors = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for door in doors:
            stack.enter_context(door)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        clients = []
        for door in doors:
            command = [sys.executable, "-c", CLIENT, str(port), str(door.getsockname()[1])]
            clients.append(stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE)))
        accepted = [stack.enter_context(door.accept()[0]) for door in doors]
        owners = [owner((end.getpeername(), end.getsockname())) for end in accepted]

        assert owners == [client.pid for client in clients]
