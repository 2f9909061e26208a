"""What was deleted stays deleted, though nsqd is killed right after it has said so."""

import json
import urllib.request
from pathlib import Path

import daemons


def post(nsqd: daemons.Daemon, order: str, body: bytes = b"") -> None:
    with urllib.request.urlopen(f"{nsqd.url}{order}", data=body, timeout=60):
        pass


def test_a_topic_and_a_channel_that_the_catalog_knew_do_not_come_back(tmp_path: Path) -> None:
    catalog = tmp_path / "nsqd.dat"

    def known() -> bool:
        return b'"goes"' in catalog.read_bytes() and catalog.read_bytes().count(b'"c"') == 2

    with daemons.start_nsqd(tmp_path) as nsqd:
        for topic in ("stays", "goes"):
            post(nsqd, f"/pub?topic={topic}", b"x")
            post(nsqd, f"/channel/create?topic={topic}&channel=c")
        daemons.until(known, what="the catalog with both topics")
        post(nsqd, "/channel/delete?topic=stays&channel=c")
        post(nsqd, "/topic/delete?topic=goes")
        nsqd.kill()
        nsqd.restart()
        with urllib.request.urlopen(f"{nsqd.url}/stats?format=json", timeout=60) as answer:
            shown = json.load(answer)["topics"]

    assert [(topic["topic_name"], topic["channels"]) for topic in shown] == [("stays", [])]
