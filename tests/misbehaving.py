"""An object store that drops, repeats, refuses and cuts off, as a proxy before one that does not."""

import http.client
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

FATES = [
    "dropped", "unanswered", "repeated", "conflict", "conflict after", "exists after", "error", "error after", "busy",
    "half", "slow",
]  # fmt: skip


class Proxy:
    """A proxy before an object store; `plan` has what becomes of the next requests, `chance` how many others suffer."""

    def __init__(self, endpoint: str) -> None:
        proxy = self
        target = urlsplit(endpoint).netloc
        self.plan: list[str] = []
        self.chance = 0.0
        self.met: set[str] = set()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words: object) -> None:
                """Print nothing."""

            def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
                connection = http.client.HTTPConnection(target, timeout=30)
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                found = answer.status, answer.getheaders(), answer.read()
                connection.close()
                return found

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                fate = proxy.plan.pop(0) if proxy.plan else proxy.by_chance()
                proxy.met.add(f"{fate} {self.command}")
                if fate == "dropped":
                    self.close_connection = True
                    return
                refused = {"conflict": 409, "error": 500, "busy": 503}.get(fate)
                if refused is not None:
                    self._answer(refused, [], b"<Error><Code>Refused</Code></Error>")
                    return
                status, headers, content = self._forward(body)
                if fate == "repeated":
                    status, headers, content = self._forward(body)
                after = {"conflict after": 409, "exists after": 412, "error after": 500}.get(fate)
                if fate == "unanswered":
                    self.close_connection = True
                elif after is not None:
                    self._answer(after, [], b"<Error><Code>After</Code></Error>")
                else:
                    self._answer(status, headers, content, fate)

            def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, fate: str = "") -> None:
                self.send_response(status)
                for name, value in headers:
                    if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if fate == "half":
                    self.wfile.write(content[: len(content) // 2])
                    self.close_connection = True
                elif self.command != "HEAD":
                    for at in range(0, len(content), 64 if fate == "slow" else 1 << 20):
                        self.wfile.write(content[at : at + (64 if fate == "slow" else 1 << 20)])
                        self.wfile.flush()

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def by_chance(self) -> str:
        """Return what becomes of a request."""
        return random.choice(FATES) if random.random() < self.chance else ""

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
