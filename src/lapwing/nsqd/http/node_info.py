"""`GET /node`: the resources that this nsqd uses, and the options in force."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from lapwing import __version__
from lapwing.broker.settings.options import Options
from lapwing.net.options import settings, without_secrets
from lapwing.net.server.answers import Answer, value
from lapwing.net.server.requests import Request
from lapwing.net.server.routes import Route
from lapwing.nsqd.stats import memory


class NodeInfo:
    """Answers with figures of the process and its disk, which nsqadmin shows on the page of the node."""

    def __init__(
        self, options: Options, data_path: str, remote: Callable[[], dict[str, Any] | None] = lambda: None
    ) -> None:
        """`remote` returns the figures of the remote log, if there is one."""
        self._options = options
        self._remote = remote
        self._data_path = data_path

    def routes(self) -> list[Route]:
        return [Route("GET", "/node", self.show)]

    def show(self, request: Request) -> Answer:
        """Answer with version, memory, open files, disk and options. A figure that the system does not give is null."""
        return value(
            {
                "lapwing": __version__,
                "memory_bytes": memory.resident(),
                "cpu_seconds": memory.cpu_seconds(),
                "open_files": _known(memory.open_files()),
                "max_files": _known(memory.most_files()),
                "data_path": os.path.abspath(self._data_path),
                **self._disk(),
                "remote": self._remote(),
                "options": self._shown(),
            }
        )

    def _disk(self) -> dict[str, int | None]:
        try:
            facts = os.statvfs(self._data_path)
        except OSError:
            return {"disk_free_bytes": None, "disk_bytes": None}
        return {"disk_free_bytes": facts.f_bavail * facts.f_frsize, "disk_bytes": facts.f_blocks * facts.f_frsize}

    def _shown(self) -> list[dict[str, str | bool]]:
        """Return every option as a flag, its value as text without passwords, and whether that is the default."""
        defaults = Options()
        return [
            {
                "flag": f"--{setting.flag}",
                "value": without_secrets(setting.kind.show(getattr(self._options, setting.name))),
                "default": getattr(self._options, setting.name) == getattr(defaults, setting.name),
            }
            for setting in settings(Options)
            if setting.key
        ]


def _known(number: int) -> int | None:
    return number if number >= 0 else None
