"""pynsq, as its users run it: does the job of `parties.Job` and tells what it saw."""

import ssl
import sys

import nsq
import reporting
import tornado.ioloop


def main() -> None:
    job = reporting.read_job()
    report = reporting.Report(job)
    loop = tornado.ioloop.IOLoop.current()
    address = f"{job['host']}:{job['port']}"
    settings = {"heartbeat_interval": job["heartbeat"]}
    if job["tls"]:
        settings |= {"tls_v1": True, "tls_options": {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": job["ca"]}}
    if job["compression"]:
        settings[job["compression"]] = True
    if job["secret"]:
        settings["auth_secret"] = job["secret"]
    writer = nsq.Writer([address], **settings)
    writer.heartbeat = lambda conn: report.heartbeat()
    topic = job["topic"]
    answers: list[object] = []

    def answered(conn: object, data: object) -> None:
        answers.append(data)
        if isinstance(data, nsq.Error):
            report.fail(data)
        elif len(answers) == 5 + len(job["singles"]):
            report.answers = len(answers)
            read()

    def publish() -> None:
        if not any(conn.connected() and conn.id in writer.conns for conn in writer.conns.values()):
            loop.call_later(0.01, publish)
            return
        report.begin()
        if job["published"]:
            read()
            return
        for body in job["singles"]:
            writer.pub(topic, body.encode(), callback=answered)
        writer.mpub(topic, [body.encode() for body in job["batch"]], callback=answered)
        writer.pub(topic, report.big, callback=answered)
        writer.dpub(topic, job["delay"], b"later", callback=answered)
        writer.pub(topic, b"again", callback=answered)
        writer.pub(topic, b"slow", callback=answered)

    def handle(message: nsq.Message) -> None:
        message.enable_async()
        report.delivered(message.body, message.attempts)
        if message.body == b"again" and message.attempts == 1:
            message.requeue(time_ms=job["requeue"], backoff=False)
        elif message.body == b"slow" and job["touches"]:
            touch(message, job["touches"])
        else:
            finish(message)

    def touch(message: nsq.Message, left: int) -> None:
        if not left:
            finish(message)
            return
        message.touch()
        loop.call_later(job["touch_every"] / 1000, touch, message, left - 1)

    def finish(message: nsq.Message) -> None:
        message.finish()
        if report.finished(message.body):
            loop.call_later(0, lambda: (report.send(), loop.add_handler(sys.stdin, lambda *_: loop.stop(), loop.READ)))

    def read() -> None:
        place = {"lookupd_http_addresses": [job["lookupd"]]} if job["lookupd"] else {"nsqd_tcp_addresses": [address]}
        reader = nsq.Reader(
            topic, "pynsq", message_handler=handle, max_in_flight=20, lookupd_poll_interval=1, **place, **settings
        )
        reader.heartbeat = lambda conn: report.heartbeat()

    loop.add_callback(publish)
    loop.start()


main()
