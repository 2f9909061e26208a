"""gnsq, as its users run it: does the job of `parties.Job` and tells what it saw."""

import ssl
import sys

import gevent
import gnsq
import reporting
from gevent.fileobject import FileObject


class Pooled:
    """Publishes with a `Producer`."""

    def __init__(self, address: str, settings: dict[str, object]) -> None:
        self._producer = gnsq.Producer(address, **settings)
        self._producer.start()
        self.close = self._producer.close

    def publish(self, topic: str, body: bytes, defer: int | None = None) -> None:
        self._producer.publish(topic, body, defer=defer, timeout=5)

    def multipublish(self, topic: str, bodies: list[bytes]) -> None:
        self._producer.multipublish(topic, bodies, timeout=5)


class Upgraded:
    """Publishes with a bare connection: a `Producer` takes the OK of an upgrade for that of a publish, and fails."""

    def __init__(self, job: dict[str, object], settings: dict[str, object]) -> None:
        self._connection = gnsq.NsqdTCPClient(job["host"], job["port"], **settings)
        self._connection.connect()
        self._connection.identify()
        self.close = self._connection.close_stream

    def publish(self, topic: str, body: bytes, defer: int | None = None) -> None:
        self._connection.publish(topic, body, defer=defer)
        self._connection.check_ok()

    def multipublish(self, topic: str, bodies: list[bytes]) -> None:
        self._connection.multipublish(topic, bodies)
        self._connection.check_ok()


def main() -> None:
    job = reporting.read_job()
    report = reporting.Report(job)
    address = f"{job['host']}:{job['port']}"
    settings = {"heartbeat_interval": job["heartbeat"]}
    if job["tls"]:
        settings |= {"tls_v1": True, "tls_options": {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": job["ca"]}}
    if job["compression"]:
        settings[job["compression"]] = True
    if job["secret"]:
        settings["auth_secret"] = job["secret"].encode()
    topic = job["topic"]
    publisher = Upgraded(job, settings) if job["tls"] or job["compression"] else Pooled(address, settings)
    report.begin()
    try:
        if not job["published"]:
            for body in job["singles"]:
                publisher.publish(topic, body.encode())
            publisher.multipublish(topic, [body.encode() for body in job["batch"]])
            publisher.publish(topic, report.big)
            publisher.publish(topic, b"later", defer=job["delay"])
            publisher.publish(topic, b"again")
            publisher.publish(topic, b"slow")
            report.answers = 5 + len(job["singles"])
    except gnsq.errors.NSQException as error:
        report.fail(error)
    done = gevent.event.Event()
    place = {"lookupd_http_addresses": [job["lookupd"]]} if job["lookupd"] else {"nsqd_tcp_addresses": [address]}
    consumer = gnsq.Consumer(topic, "gnsq", max_in_flight=20, lookupd_poll_interval=1, **place, **settings)

    def finish(message: gnsq.Message) -> None:
        message.finish()
        if report.finished(message.body):
            done.set()

    def keep(message: gnsq.Message) -> None:
        for _ in range(job["touches"]):
            message.touch()
            gevent.sleep(job["touch_every"] / 1000)
        finish(message)

    @consumer.on_message.connect
    def handle(consumer: gnsq.Consumer, message: gnsq.Message) -> None:
        message.enable_async()
        report.delivered(message.body, message.attempts)
        if message.body == b"again" and message.attempts == 1:
            message.requeue(job["requeue"], backoff=False)
        elif message.body == b"slow" and job["touches"]:
            gevent.spawn(keep, message)
        else:
            finish(message)

    consumer.on_response.connect(
        lambda _, response: report.heartbeat() if response == b"_heartbeat_" else None, weak=False
    )
    consumer.start(block=False)
    done.wait()
    gevent.sleep(0.05)
    report.send()
    FileObject(sys.stdin.buffer).read()
    consumer.close()
    publisher.close()


main()
