"""The daemons that other people's clients talk to, and nsqjs itself."""

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import tempfile
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

import certificates
import daemons

NSQJS = Path(__file__).parent / "nsqjs"


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificates.self_signed(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="session")
def lookupd() -> Iterator[daemons.Daemon]:
    with daemons.start_nsqlookupd() as daemon:
        yield daemon


@pytest.fixture(scope="session")
def nsqd(certificate: tuple[Path, Path], lookupd: daemons.Daemon) -> Iterator[daemons.Daemon]:
    """An nsqd with everything on: TLS, both compressions, an nsqlookupd."""
    flags = (f"--tls-cert={certificate[0]}", f"--tls-key={certificate[1]}", "--https-address=127.0.0.1:0")
    with daemons.nsqd(*flags, lookupd_tcp_addresses=(lookupd.tcp,)) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def hasty_nsqd() -> Iterator[daemons.Daemon]:
    """An nsqd with which a message that is not touched comes again soon."""
    with daemons.nsqd("--msg-timeout=2s") as daemon:
        yield daemon


class Authority(http.server.BaseHTTPRequestHandler):
    """Knows one secret, and what it is good for."""

    def do_GET(self) -> None:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        grants = [{"topic": "^compat_", "channels": [".*"], "permissions": ["subscribe", "publish"]}]
        known = query.get("secret") == ["open sesame"]
        answer = {"ttl": 3600, "identity": "somebody", "authorizations": grants if known else []}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="session")
def guarded_nsqd() -> Iterator[daemons.Daemon]:
    """An nsqd that asks an auth server about everybody."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Authority)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with daemons.nsqd("--stats-without-auth", f"--auth-http-address=127.0.0.1:{server.server_port}") as daemon:
        yield daemon
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def nsqjs_modules() -> str:
    """Where nsqjs is installed: outside the repository, once for each lock file."""
    missing = [program for program in ("node", "npm") if shutil.which(program) is None]
    if missing:
        pytest.fail(f"{' and '.join(missing)} not found: `make system` (part of `make test`) installs nodejs and npm")
    lock = (NSQJS / "package-lock.json").read_bytes()
    cache = Path(os.environ.get("LAPWING_CACHE", Path.home() / ".cache" / "lapwing"))
    place = cache / f"nsqjs-{hashlib.sha256(lock).hexdigest()[:12]}"
    if not (place / "node_modules" / "nsqjs").exists():
        cache.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix="nsqjs-", dir=cache))
        for name in ("package.json", "package-lock.json"):
            shutil.copy(NSQJS / name, fresh)
        install = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(install, cwd=fresh, capture_output=True, text=True, timeout=110, check=False)
        if done.returncode:
            shutil.rmtree(fresh)
            pytest.fail(f"npm could not install nsqjs from its lock file:\n{done.stderr[-2000:]}")
        shutil.rmtree(place, ignore_errors=True)
        fresh.rename(place)
    return str(place)
