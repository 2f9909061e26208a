"""Which cluster a command uses: flags, contexts, environment; and with which secret."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from commanding import lapwing, lapwing_json

from lapwing.cli import contexts, shared
from lapwing.cli.contexts import Context
from lapwing.errors import ConfigError

VARIABLES = ("LAPWING_NSQD_HTTP", "LAPWING_NSQD_TCP", "LAPWING_LOOKUPD_HTTP", "LAPWING_AUTH_SECRET", "LAPWING_CONTEXT")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LAPWING_CONTEXTS", str(tmp_path / "config" / "contexts.json"))


class Guarded(BaseHTTPRequestHandler):
    """An nsqd that requires AUTH and has one empty topic; `plain`: without lapwing's own endpoints."""

    plain = False
    secret = ""
    seen: list[tuple[str, str | None]] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.seen.append((self.path.partition("?")[0], self.headers["Authorization"]))
        if self.secret and self.headers["Authorization"] != f"Bearer {self.secret}":
            self.answer(401, {"message": "AUTH_REQUIRED"})
        elif self.path.startswith("/info"):
            self.answer(200, {"version": "1.3.0", "http_port": 1})
        elif self.path.startswith("/stats"):
            self.answer(200, {"health": "OK", "topics": []})
        elif self.plain:
            self.answer(404, {"message": "NOT_FOUND"})
        else:
            self.answer(200, {"topics": [], "pipelines": []})

    do_POST = do_GET

    def answer(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


@pytest.fixture
def guarded() -> Iterator[type[Guarded]]:
    class Handler(Guarded):
        seen: list[tuple[str, str | None]] = []  # noqa: RUF012
        address = ""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Handler.address = f"127.0.0.1:{server.server_address[1]}"
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield Handler
    server.shutdown()
    server.server_close()


def test_a_context_is_added_used_listed_and_removed(tmp_path: Path) -> None:
    lapwing("context", "add", "prod", "--lookupd-http-address", "a:4161", "--auth-secret", "s3cret")
    lapwing("context", "add", "lab", "--nsqd-http-address", "l:4151", "--nsqd-tcp-address", "l:4150")
    listed = lapwing_json("context", "list")
    shown = lapwing("context", "list").stdout
    lapwing("context", "use", "lab")

    assert listed["current"] == "prod"
    assert listed["contexts"]["prod"]["auth_secret"] is True
    assert "s3cret" not in shown + json.dumps(listed)
    assert "* prod" in shown
    assert shared.addresses(shared.ClusterFlags()) == Context(["l:4151"], ["l:4150"], [])
    assert (tmp_path / "config" / "contexts.json").stat().st_mode & 0o777 == 0o600
    lapwing("context", "remove", "lab")
    assert shared.addresses(shared.ClusterFlags()) == Context()


def test_flags_beat_a_named_context_and_that_the_environment_and_that_the_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contexts.save(contexts.Contexts("one", {"one": Context(["one:1"]), "two": Context(["two:1"], auth_secret="two")}))

    assert shared.addresses(shared.ClusterFlags()).nsqd_http == ["one:1"]
    monkeypatch.setenv("LAPWING_NSQD_HTTP", "env:1 env:2")
    assert shared.addresses(shared.ClusterFlags()).nsqd_http == ["env:1", "env:2"]
    assert shared.addresses(shared.ClusterFlags(context="two")) == Context(["two:1"], auth_secret="two")
    assert shared.addresses(shared.ClusterFlags(["flag:1"], context="two")).nsqd_http == ["flag:1"]
    assert shared.addresses(shared.ClusterFlags(lookupd_http=["l:1"])) == Context([], [], ["l:1"])


def test_wrong_use_is_one_sentence_that_names_the_fix(tmp_path: Path) -> None:
    assert "not both" in lapwing("topics", "--nsqd-http-address", "a:1", "--lookupd-http-address", "b:1", code=2).stderr
    assert "there is no context 'nope'" in lapwing("topics", "--context", "nope", code=2).stderr
    assert "give --lookupd-http-address" in lapwing("context", "add", "x", code=2).stderr
    contexts.path().parent.mkdir()
    contexts.path().write_text("{")
    assert "repair or delete it" in lapwing("topics", code=2).stderr


def test_tcp_commands_need_tcp_addresses() -> None:
    with pytest.raises(ConfigError, match="--nsqd-tcp-address"):
        shared.tcp_addresses(Context(["a:4151"]))

    assert shared.tcp_addresses(Context()) == (["127.0.0.1:4150"], [])
    assert shared.tcp_addresses(Context(lookupd_http=["l:1"])) == ([], ["l:1"])


def test_the_secret_is_sent_with_every_call(guarded: type[Guarded], monkeypatch: pytest.MonkeyPatch) -> None:
    guarded.secret = "s3cret"
    address = ("--nsqd-http-address", guarded.address)
    refused = lapwing("topics", *address, code=1).stderr
    lapwing("topics", *address, "--auth-secret", "s3cret")
    monkeypatch.setenv("LAPWING_AUTH_SECRET", "s3cret")
    lapwing("channels", *address)

    assert "give the secret with --auth-secret or LAPWING_AUTH_SECRET" in refused
    assert {secret for path, secret in guarded.seen} == {None, "Bearer s3cret"}
    assert "--auth-secret" in lapwing("topics", *address, "--auth-secret", "a\nb", code=2).stderr


def test_check_of_ages_on_a_plain_server_is_unknown(guarded: type[Guarded]) -> None:
    guarded.plain = True
    address = ("--nsqd-http-address", guarded.address)

    assert "does not report the age of messages" in lapwing("check", "--age-critical", "1h", *address, code=3).stdout
    assert lapwing("check", *address).stdout.startswith("OK: ")
    assert "does not report the age" in lapwing("channels", *address).stderr
