"""What can be seen of the process behind an address: who it is, its CPU time, its memory, how durable it is."""

import contextlib
import os
import socket
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Final

_LISTEN: Final = "0A"
_PATIENCE: Final = 5.0
DURABILITIES: Final = ("memory", "os", "fsync")


def listening_pid(host: str, port: int) -> int | None:
    """The process on this machine that listens on `port`, where we may look; None for another machine's."""
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
    """When this nsqd acknowledges a publish (`memory`, `os`, `fsync`); None where it does not say."""
    try:
        with urllib.request.urlopen(f"http://{http_address}/config/durability", timeout=_PATIENCE) as answer:
            said = answer.read(64).decode("ascii").strip().strip('"')
    except (OSError, ValueError):
        return None
    return said if said in DURABILITIES else None


def delete_topic(http_address: str, topic: str) -> str | None:
    """Delete a topic; what went wrong, if anything."""
    query = urllib.parse.urlencode({"topic": topic})
    request = urllib.request.Request(f"http://{http_address}/topic/delete?{query}", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE):
            return None
    except urllib.error.HTTPError as error:
        return None if error.code == 404 else f"HTTP {error.code}"
    except (OSError, ValueError) as error:
        return str(error)
