"""A door in front of a broker that can be held shut at a chosen request: for killing others at that very moment."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Proxy:
    """Passes requests on. With `hold` set to a path, such a request is held: before it is passed on, or `after` that.

    `held` is set when that happens.
    """

    def __init__(self, address: str) -> None:
        self.target = address
        self.hold: str | None = None
        self.after = False
        self.held = threading.Event()
        self.released = threading.Event()
        proxy = self

        class Passing(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy.pass_on(self)

            do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None:
                """Quietly."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Passing)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"

    def pass_on(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0)) or None
        stopped = self.hold is not None and request.path.startswith(self.hold)
        if stopped and not self.after:
            self.held.set()
            self.released.wait()
            request.close_connection = True
            return
        connection = http.client.HTTPConnection(self.target, timeout=60)
        connection.request(request.command, request.path, body)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if stopped:
            self.held.set()
            self.released.wait()
            request.close_connection = True
            return
        request.send_response(answer.status)
        request.send_header("Content-Type", answer.headers.get("Content-Type", "text/plain"))
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
