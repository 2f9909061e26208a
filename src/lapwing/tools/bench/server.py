"""The server behind an address: its process, its durability."""

import contextlib
import os
import socket
from pathlib import Path
from typing import Final
from urllib.parse import quote

from lapwing.net.client import bearer
from lapwing.net.client.blocking import BlockingHttpClient
from lapwing.net.client.message import HttpFailed

_LISTEN: Final = "0A"
_SECONDS: Final = 5.0  # for a request
DURABILITIES: Final = ("memory", "os", "fsync")


def listening_pid(host: str, port: int) -> int | None:
    """Return the process on this machine that listens on `port`, or None."""
    if not _is_here(host):
        return None
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not wanted:
        return None
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError), os.scandir(folder / "fd") as descriptors:
                for descriptor in descriptors:
                    if os.readlink(descriptor.path) in wanted:
                        return int(folder.name)
    return None


def _is_here(host: str) -> bool:
    with contextlib.suppress(OSError):
        address = socket.getaddrinfo(host, None)[0][4][0]
        with socket.socket(socket.AF_INET6 if ":" in str(address) else socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((str(address), 0))
            return True
    return False


def _listening_inodes(port: int) -> list[str]:
    inodes = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for row in Path(table).read_text().splitlines()[1:]:
                fields = row.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.append(fields[9])
    return inodes


def durability(http_address: str) -> str | None:
    """Return the durability of an nsqd (`memory`, `os`, `fsync`), or None if it is not lapwing's."""
    try:
        with _client() as client:
            answer = client.request("GET", f"http://{http_address}/config/durability")
    except HttpFailed:
        return None
    found = answer.text.strip().strip('"')
    return found if answer.status == 200 and found in DURABILITIES else None


def delete_topic(http_address: str, topic: str) -> str | None:
    """Delete a topic; return the error, if any."""
    try:
        with _client() as client:
            answer = client.request("POST", f"http://{http_address}/topic/delete?topic={quote(topic)}")
    except HttpFailed as error:
        return str(error)
    return None if answer.status in (200, 404) else f"HTTP {answer.status}"


def _client() -> BlockingHttpClient:
    secret = os.environ.get("LAPWING_AUTH_SECRET", "")
    headers = {bearer.HEADER: bearer.credentials(secret).decode()} if secret else {}
    return BlockingHttpClient(connect_timeout=_SECONDS, request_timeout=_SECONDS, headers=headers, max_answer=1 << 16)
