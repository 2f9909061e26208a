"""Conversations recorded with NSQ, as far as the wire alone decides them: no broker, no socket, no clock."""

import json
import re
from pathlib import Path

import pytest
from feeding import answers

from lapwing import kernel
from lapwing.errors import ProtocolError, PublishRefused
from lapwing.wire.nsq import frames, identify, parse_mpub
from lapwing.wire.nsq.commands import Cls, Dpub, Fins, Identify, Mpub, Pub, Req, Reqs, Sub, Touch
from lapwing.wire.nsq.connection import BrokerConnection, HangUp, Limits

MS = 1_000_000
VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "nsqd-vectors.json").read_text())
DECIDABLE = {"send", "expect", "expect_json", "half_close", "close", "silent_ms", "within_ms"}
LIMIT_FLAGS = {
    "--max-msg-size": ("max_message", 1),
    "--max-body-size": ("max_body", 1),
    "--max-rdy-count": ("max_rdy", 1),
    "--max-req-timeout": ("max_req_timeout", MS),
}
TERM_FLAGS = {
    "--max-rdy-count": "max_rdy",
    "--msg-timeout": "msg_timeout",
    "--max-msg-timeout": "max_msg_timeout",
    "--max-heartbeat-interval": "max_heartbeat_interval",
    "--output-buffer-timeout": "output_buffer_timeout",
    "--max-deflate-level": "max_deflate_level",
    "--deflate": "deflate",
    "--snappy": "snappy",
    "--topology-region": "topology_region",
    "--topology-zone": "topology_zone",
}


def decidable(case):
    """Whether no message is delivered, no time passes, no second client speaks, nothing is encrypted or compressed."""
    flags = {flag.split("=")[0] for flag in case.get("flags") or []}
    steps = json.dumps(case["steps"])
    return (
        flags <= LIMIT_FLAGS.keys() | TERM_FLAGS.keys()
        and not case.get("needs")
        and case["group"] not in {"semantics", "AUTH", "upgrade"}
        and all(step.keys() <= DECIDABLE for step in case["steps"])
        and "{id:" not in steps
        and "{ts:" not in steps
    )


def value(text):
    if match := re.fullmatch(r"(\d+)(ms|s)", text):
        return int(match[1]) * (MS if match[2] == "ms" else 1000 * MS)
    return {"true": True, "false": False}.get(text, int(text) if text.isdigit() else text)


def decode(tokens):
    """The bytes that a vector's hex stands for."""

    def repeat(match):
        return match[1] * int(match[2])

    return bytes.fromhex(re.sub(r"\{rep:(..):(\d+)\}", repeat, tokens))


def unknown(word, message_id):
    return frames.error(b"E_%b_FAILED %b %b failed ID not in flight" % (word, word, message_id))


class Broker:
    """Grants everything that the wire lets through, and never has a message."""

    def __init__(self, flags):
        options = dict(flag.split("=", 1) for flag in flags)
        limits = {LIMIT_FLAGS[flag][0]: value(text) for flag, text in options.items() if flag in LIMIT_FLAGS}
        terms = {TERM_FLAGS[flag]: value(text) for flag, text in options.items() if flag in TERM_FLAGS}
        self.limits = Limits(**limits)
        self.terms = identify.Terms(version="1.3.0", **terms)
        self.settings = self.terms.settings()
        self.wire = BrokerConnection(self.limits)
        self.sent = b""
        self.closed = False

    def receive(self, data):
        self.wire.receive(data)
        try:
            for command in self.wire.commands():
                self.sent += self.answer(command)
        except ProtocolError as error:
            self.refuse(error)
        except HangUp:
            self.closed = True

    def answer(self, command):
        if isinstance(command, Identify):
            self.settings, payload = identify.negotiate(identify.parse(command.body), self.terms, self.settings)
            self.wire.heartbeats = self.settings.heartbeat_interval > 0
            return frames.response(payload)
        if isinstance(command, Mpub):
            try:
                kernel.frame_mpub(command.body, 0, 0, self.limits.max_count, self.limits.max_message)
            except PublishRefused as error:
                raise parse_mpub.refusal("MPUB", error, len(command.body), self.limits) from error
        if isinstance(command, Fins):
            return b"".join(unknown(b"FIN", line[4:]) for line in command.block.splitlines())
        if isinstance(command, Reqs):
            return b"".join(unknown(b"REQ", message_id) for message_id in command.ids)
        if isinstance(command, Req | Touch):
            return unknown(type(command).__name__.upper().encode(), command.id)
        if isinstance(command, Pub | Dpub | Mpub | Sub):
            return frames.OK
        return frames.CLOSE_WAIT if isinstance(command, Cls) else b""

    def half_close(self):
        if not self.closed:
            if error := self.wire.eof():
                self.refuse(error)
            self.closed = True

    def refuse(self, error):
        self.sent += frames.error(error.payload)
        self.closed = True


CASES = [case for case in VECTORS if decidable(case)]


def test_the_wire_decides_most_of_what_was_recorded():
    assert len(CASES) >= 110


@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "bytewise"])
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_recorded_conversation_goes_the_same_way(case, bytewise):
    broker = Broker(case.get("flags") or [])
    for step in case["steps"]:
        data = decode(step.get("send", ""))
        for piece in (data[at : at + 1] for at in range(len(data))) if bytewise else [data]:
            if not broker.closed:
                broker.receive(piece)
        if step.get("half_close"):
            broker.half_close()
        sent, broker.sent = broker.sent, b""

        if expected := step.get("expect_json"):
            ((kind, payload),) = answers(sent)
            assert kind == expected["frame"]
            wanted = expected["equals"]
            seen = json.loads(payload)
            assert seen | {key: "*" for key in wanted if wanted[key] == "*"} == wanted
            assert seen.keys() == wanted.keys()
        else:
            assert sent == decode(step.get("expect", ""))
        assert broker.closed == step.get("close", False)
