"""A daemon that is silent holds up nobody: it is left out, named, and asked on in the background."""

import os
import signal
import socket
import threading
import time

import pytest
from driven import DrivenQuery

from daemons import until
from lapwing.spark.brokers import http, inquiry
from lapwing.spark.brokers.http import BrokerAway
from lapwing.spark.brokers.inquiry import Inquiry


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Tests need not wait for as long as users do."""
    monkeypatch.setattr(inquiry, "PLANNING_SECONDS", 0.2)
    monkeypatch.setattr(inquiry, "_PAUSE_SECONDS", 0.01)


def test_a_silent_daemon_is_left_out_and_its_answer_is_used_when_it_comes():
    asked, answers = [], threading.Semaphore(0)

    def ask(address):
        asked.append(address)
        if address == "slow:1":
            answers.acquire(timeout=60)
        return f"answer of {address}"

    inquiry = Inquiry()
    [(_, away), (_, there)] = inquiry.ask_all(["slow:1", "quick:1"], "what", ask)
    again = [inquiry.ask_all(["slow:1"], "what", ask)[0][1] for _ in range(3)]
    answers.release()
    until(lambda: inquiry._silent["slow:1"].answered.is_set(), seconds=60)

    assert there == "answer of quick:1"
    assert isinstance(away, BrokerAway)
    assert str(away) == "slow:1: no answer within 0.2 s; it is asked again in the background"
    assert again == [away] * 3
    assert inquiry.ask_all(["slow:1"], "what", ask) == [("slow:1", "answer of slow:1")]
    assert asked.count("slow:1") == 1
    answers.release()
    assert inquiry.ask_all(["slow:1"], "what", ask) == [("slow:1", "answer of slow:1")]
    assert asked.count("slow:1") == 2


def test_an_answer_to_another_question_is_not_used():
    held = threading.Event()
    inquiry = Inquiry()
    inquiry.ask_all(["a:1"], "one", lambda address: held.wait(60) and "one")
    held.set()
    until(lambda: inquiry._silent["a:1"].answered.is_set(), seconds=60)

    assert inquiry.ask_all(["a:1"], "two", lambda address: "two") == [("a:1", "two")]


def test_what_fails_slowly_is_repeated_until_it_is_answered_or_fails_at_once():
    failures = iter([True, True, False])

    def ask(address):
        if next(failures):
            threading.Event().wait(inquiry.PLANNING_SECONDS * 1.5)
            raise BrokerAway(address, "no connection within 5 s")
        return "back"

    asker = Inquiry()
    [(_, first)] = asker.ask_all(["a:1"], "what", ask)
    until(lambda: asker._silent["a:1"].answered.is_set(), seconds=60)

    assert "no answer within" in str(first)
    assert asker.ask_all(["a:1"], "what", ask) == [("a:1", "back")]


def test_an_error_that_time_does_not_mend_is_raised():
    def ask(address):
        raise http.WrongPort(f"{address}: the TCP port")

    with pytest.raises(http.WrongPort):
        Inquiry().ask_all(["a:1"], "what", ask)


def test_a_stopped_broker_is_left_out_of_the_plan_and_read_when_it_goes_on(start_broker, caplog):
    brokers = [start_broker(), start_broker()]
    for broker in brokers:
        broker.publish("orders", b"first")
    query = DrivenQuery(brokers, channel="lake", retryTimeout="30s")
    query.catch_up()
    stopped = brokers[1].daemon.pid
    brokers[1].publish("orders", b"waits")
    os.kill(stopped, signal.SIGSTOP)
    began = time.monotonic()
    try:
        for number in range(5):
            brokers[0].publish("orders", b"%d" % number)
            query.catch_up()
        took = time.monotonic() - began
        assert query.bodies() == sorted([b"first", b"first", *(b"%d" % number for number in range(5))])
        assert took < http.ANSWER_SECONDS / 2  # one answer that is waited for in vain takes longer
    finally:
        os.kill(stopped, signal.SIGCONT)
    until(lambda: query.batch() and b"waits" in query.bodies(), seconds=60)

    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if "is away, its messages wait" in line] == [
        f"{brokers[1].address} is away, its messages wait: {brokers[1].address}: no answer within 0.2 s; "
        "it is asked again in the background"
    ]
    assert f"{brokers[1].address} is back" in said


def test_a_broker_that_swallows_packets_is_waited_for_once(start_broker):
    broker = start_broker()
    broker.publish("orders", b"first")
    query = DrivenQuery([broker], retryTimeout="30s")
    query.catch_up()
    with socket.socket() as full:  # nobody accepts: once its queue is full, packets are dropped
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        name = full.getsockname()
        with socket.create_connection(name), socket.socket() as second:
            second.setblocking(False)
            second.connect_ex(name)
            query.restart(nsqd=f"{broker.address},127.0.0.1:{name[1]}")
            began = time.monotonic()
            for number in range(5):
                broker.publish("orders", b"%d" % number)
                query.catch_up()
            took = time.monotonic() - began

    assert query.bodies() == sorted([b"first", *(b"%d" % number for number in range(5))])
    assert took < http.CONNECT_SECONDS  # one connection that is waited for in vain takes as long
