"""The nsq_* programs as processes: started, watched and ended."""

import contextlib
import gzip
import signal
import subprocess

import httpx

from daemons import program
from lapwing.client.sync import SyncConsumer, SyncProducer


def run(tool, *flags, stdin=b"", seconds=60):
    """Run to the end: status, stdout, stderr."""
    done = subprocess.run([*program(tool), *flags], input=stdin, capture_output=True, timeout=seconds, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@contextlib.contextmanager
def started(tool, *flags):
    """A running tool; killed at the end of the block if it still runs."""
    process = subprocess.Popen(
        [*program(tool), *flags], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process, number=signal.SIGTERM, seconds=60):
    """Send a signal and wait: status, stdout, stderr."""
    process.send_signal(number)
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out.decode(), err.decode()


def publish(nsqd, topic, *bodies):
    with SyncProducer(nsqd.tcp) as producer:
        producer.publish_many(topic, list(bodies))


def consumed(nsqd, topic, count, channel="test"):
    found = []
    with SyncConsumer(topic, channel, nsqd=nsqd.tcp, max_in_flight=100) as consumer:
        while len(found) < count:
            message = consumer.get(timeout=60)
            assert message is not None, f"only {found}"
            found.append(message.body)
            message.finish()
    return found


def channel_of(nsqd, topic, channel):
    """What `/stats` says of a channel; empty when there is none."""
    stats = httpx.get(f"{nsqd.url}/stats?format=json&topic={topic}", trust_env=False).json()
    for known in stats["topics"] or ():
        for one in known["channels"] or ():
            if one["channel_name"] == channel:
                return one
    return {}


def finished(nsqd, topic, channel, count):
    """Whether so many messages of a channel are done, and none is left."""
    one = channel_of(nsqd, topic, channel)
    left = one.get("depth", 1) + one.get("in_flight_count", 1) + one.get("deferred_count", 1)
    return one.get("message_count", 0) >= count and not left


def under_way(channel):
    """Whether some messages were sent to the tool, which may have finished them."""
    return channel.get("in_flight_count") or channel.get("message_count", 0) > channel.get("depth", 0)


def contents(folder):
    found = b""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found += gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return found
