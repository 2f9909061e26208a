"""The table of nsqadmin in docs/reference/security.md is true, for nobody, a user and an admin."""

import http.client
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

from admin_stage import Cluster

from daemons import Daemon
from documents import security_table
from lapwing.admin.access import hash_password

REFUSED = (303, 401, 403)  # a page sends a browser to the login
MAY = {"everybody": (True, True, True), "users": (False, True, True), "admins": (False, False, True)}


def call(daemon: Daemon, method: str, path: str, headers: dict[str, str], body: bytes | str = b"") -> tuple[int, str]:
    connection = http.client.HTTPConnection(daemon.http, timeout=60)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    cookie = (answer.headers["Set-Cookie"] or "").partition(";")[0]
    connection.close()
    return answer.status, cookie


def test_every_endpoint_is_for_the_users_of_the_table(
    shared_cluster: Cluster, starting: Callable[..., Daemon], tmp_path: Path
) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text(f"ann:{hash_password('a')}\nbob:{hash_password('b')}\n")
    daemon = starting(
        f"--lookupd-http-address={shared_cluster.lookupd.address}", f"--password-file={passwords}", "--admin-user=ann",
        "--allow-config-from-cidr=127.0.0.1/8",
    )  # fmt: skip
    callers: list[dict[str, str]] = [{}]
    for user, password in (("bob", "b"), ("ann", "a")):
        form = urlencode({"user": user, "password": password})
        _, cookie = call(daemon, "POST", "/login", {"Content-Type": "application/x-www-form-urlencoded"}, form)
        callers.append({"Cookie": cookie})

    failures = []
    for method, path, who in security_table("nsqadmin, HTTP"):
        if path in ("/login", "/logout", "/render"):
            continue  # the first was called above, the second ends a session, and the third needs Graphite
        target = re.sub("<[a-z]+>", "none", path.replace("<option>", "log_level").replace("<file>", "none.css"))
        body = b"" if method in ("GET", "DELETE") else b"info"
        found = [call(daemon, method, target, headers, body)[0] for headers in callers]
        if tuple(status not in REFUSED for status in found) != MAY[re.split("[ ,]", who)[0]]:
            failures.append((method, path, found))

    assert failures == []
