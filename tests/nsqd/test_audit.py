"""The audit of a node without sockets: what is in it, and what is not."""

import json
from pathlib import Path
from typing import Any

import pytest
from doors import Node

from lapwing.log import audit_file
from lapwing.log.audit_file import AuditFile
from lapwing.net.server.routes import Router
from lapwing.nsqd.http.audit import NodeAudit


@pytest.fixture
async def node(tmp_path: Path) -> Node:
    node = Node()
    routes = NodeAudit(AuditFile(str(tmp_path)), node.broker, node.log).watched(node.api.routes())
    node.table = Router(routes)
    return node


async def changes(node: Node) -> list[dict[str, Any]]:
    return (await node.json("/audit"))["changes"]


async def test_a_change_is_in_it_with_who_made_it_and_how(node: Node):
    headers = [(b"user-agent", b"curl/8"), (b"x-lapwing-change", b"3f9a ann@laptop")]
    await node.ask("POST", "/topic/create?topic=t", b"", headers)
    await node.ask("PATCH", "/topic/settings?topic=t", b'{"max_msg_size": 5}')

    newest, oldest = await changes(node)
    assert newest["at_ms"] >= oldest.pop("at_ms") > 1_700_000_000_000
    assert oldest == {
        "method": "POST", "path": "/topic/create", "topic": "t", "channel": "", "detail": "", "user": "ann@laptop",
        "address": "127.0.0.1:1", "program": "curl/8", "change": "3f9a", "error": "",
    }  # fmt: skip
    assert (newest["method"], newest["detail"], newest["user"]) == ("PATCH", '{"max_msg_size": 5}', "")


async def test_publishing_reading_rehearsals_and_refusals_are_not_in_it(node: Node):
    for target in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
        await node.ask("POST", target)
    before = await changes(node)
    seek = json.dumps({"topic": "t", "channel": "c", "to": "latest", "dry_run": True}).encode()
    requests = (
        ("POST", "/pub?topic=t", b"x"),
        ("POST", "/topic/create?topic=t", b""),  # it is there already
        ("POST", "/channel/create?topic=t&channel=c", b""),
        ("POST", "/topic/pause?topic=none", b""),
        ("POST", "/channel/seek", seek),
        ("GET", "/stats", b""),
    )
    statuses = [(await node.ask(method, target, body))[0] for method, target, body in requests]

    assert statuses == [200, 200, 200, 404, 200, 200]
    assert await changes(node) == before


async def test_a_node_that_cannot_write_its_audit_carries_out_the_change(node: Node, tmp_path: Path):
    (tmp_path / "audit").mkdir()

    assert (await node.ask("POST", "/topic/create?topic=t"))[0] == 200
    assert "t" in node.broker.topics


@pytest.mark.parametrize("limit", ["0", "-1", "x", "1001"])
async def test_a_limit_that_is_none_is_refused(node: Node, limit: str):
    assert await node.ask("GET", f"/audit?limit={limit}") == (
        400, '{"message":"limit: a number from 1 to 1000 expected"}',
    )  # fmt: skip


def test_the_file_keeps_the_newest_lines_and_a_bounded_number_of_them(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(audit_file, "_LARGEST", 40)
    for number in range(20):
        AuditFile(str(tmp_path)).append(f"line {number}".encode())

    kept = AuditFile(str(tmp_path)).newest(100)
    assert kept[:3] == [b"line 19", b"line 18", b"line 17"]
    assert 4 <= len(kept) < 20
    assert AuditFile(str(tmp_path)).newest(2) == [b"line 19", b"line 18"]


def test_a_line_that_a_crash_cut_off_spoils_no_other(tmp_path: Path):
    (tmp_path / "audit").write_bytes(b'{"a": 1}\n{"b"')
    AuditFile(str(tmp_path)).append(b'{"c": 3}')

    assert AuditFile(str(tmp_path)).newest(9) == [b'{"c": 3}', b'{"b"', b'{"a": 1}']
