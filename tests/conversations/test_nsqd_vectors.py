"""Every recorded conversation with the real nsqd, held again with ours."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from replay import Replay, played

from certificates import self_signed
from daemons import Daemon, start_nsqd

VECTORS = (Path(__file__).parent.parent / "vectors" / "nsqd-vectors.json").read_text()

CASES: list[dict[str, Any]] = json.loads(VECTORS)

# What a vanished consumer held is ready again at once with us; this flag brings NSQ's way back
# (docs/reference/differences.md).
ALSO = {"disconnect_keeps_in_flight": ["--requeue-on-disconnect=false"]}


class AuthServer:
    """Answers `GET /auth` for each secret with the answers of the case, one after the other; the last one repeats."""

    def __init__(self) -> None:
        self.answers: dict[str, list[dict[str, Any]]] = {}
        outer = self

        class Door(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                secret = parse_qs(urlsplit(self.path).query).get("secret", [""])[0]
                answers = outer.answers.get(secret, [{"status": 404, "body": {}}])
                answer = answers.pop(0) if len(answers) > 1 else answers[0]
                body = answer["body"]
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(answer["status"])
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Servers:
    """One nsqd for each set of flags, kept for the cases that share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.auth = AuthServer()
        self.certificate, self.key = self_signed(folder)
        self.running: dict[tuple[str, ...], Daemon] = {}
        self.started = 0

    def with_flags(self, flags: list[str]) -> Daemon:
        known = tuple(flags)
        if known not in self.running:
            filled = [flag.format(cert=self.certificate, key=self.key, authd=self.auth.address, **{}) for flag in flags]
            path = self.folder / f"data{self.started}"
            path.mkdir()
            self.started += 1
            tls = ["--https-address=127.0.0.1:0"] if any("tls-cert" in flag for flag in flags) else []
            self.running[known] = start_nsqd(path, *filled, *tls)
        return self.running[known]

    def end(self, flags: list[str]) -> None:
        self.running.pop(tuple(flags)).kill()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("vectors"))
    yield servers
    for daemon in servers.running.values():
        daemon.kill()
    servers.auth.server.shutdown()
    servers.auth.server.server_close()


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_conversation(case: dict[str, Any], servers: Servers) -> None:
    flags = case.get("flags", []) + ALSO.get(case["name"], [])
    tried = False

    def replay() -> Replay:
        nonlocal tried
        if tried:
            servers.end(flags)  # its topics hold what is left of the case
        tried = True
        for secret, answers in case.get("authd", {}).items():
            servers.auth.answers[secret] = list(answers)
        daemon = servers.with_flags(flags)
        host, _, port = daemon.tcp.rpartition(":")
        return Replay((host, int(port)), (host, daemon.http_port))

    played(replay, case)

    assert servers.with_flags(flags).process.poll() is None
