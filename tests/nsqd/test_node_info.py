"""`/node`: what nsqadmin shows of the process."""

import json

import pytest
from doors import Node

from lapwing import __version__


async def test_a_node_shows_its_resources_and_its_options(tmp_path):
    node = Node(data_path=str(tmp_path), durability="fsync", max_msg_size=1000)
    status, body = await node.ask("GET", "/node")
    answer = json.loads(body)
    options = {each["flag"]: each for each in answer["options"]}

    assert status == 200
    assert answer["lapwing"] == __version__
    assert answer["data_path"] == str(tmp_path)
    assert 0 < answer["disk_free_bytes"] <= answer["disk_bytes"]
    assert answer["memory_bytes"] > 1 << 20
    assert 0 < answer["open_files"] <= answer["max_files"]
    assert options["--durability"] == {"flag": "--durability", "value": "fsync", "default": False}
    assert options["--max-msg-size"] == {"flag": "--max-msg-size", "value": "1000", "default": False}
    assert options["--msg-timeout"] == {"flag": "--msg-timeout", "value": "1m0s", "default": True}


async def test_a_lost_disk_is_no_reason_not_to_answer(tmp_path):
    node = Node(data_path=str(tmp_path / "gone"))
    answer = json.loads((await node.ask("GET", "/node"))[1])

    assert (answer["disk_free_bytes"], answer["disk_bytes"]) == (None, None)


@pytest.mark.parametrize("secret", ["hush", "t0ken"])
async def test_passwords_in_options_are_not_shown(secret):
    node = Node(auth_http_addresses=("http://joe:hush@127.0.0.1:1/auth?token=t0ken",))

    assert secret not in (await node.ask("GET", "/node"))[1]
