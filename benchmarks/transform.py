"""What transforms cost: JSON bodies of some 200 bytes, from the broker's log to a topic.

    python benchmarks/transform.py                        1 million messages, one in a thousand of which does not parse
    python benchmarks/transform.py --messages 200000      a smaller one

Every pipeline runs once over a few messages first, which compiles classes and starts workers, and then over all of
them. `copy` publishes the bodies again without looking into them: what reading and publishing cost by themselves.
"""

import argparse
import json
import random
import shutil
import struct
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from pipeline import NOT_OURS, Broker, measured, rates, say

from lapwing.spark.pipelines.run.runner import CONF, PipelineRun, RunRequest
from lapwing.spark.pipelines.settings import spec
from lapwing.spark.session import local_session

SCHEMA = "id bigint, at bigint, customer string, country string, amount double, items int, note string"
WARMING = 50_000
CASES = {
    "copy, bodies as they are": ("transform", "format=binary", "sql=select body from input", "to=copied"),
    "transform": (
        "transform", f"schema={SCHEMA}", "to=gross",
        "sql=select id, round(amount * 1.19, 2) as gross, country, note from input where amount > 5",
    ),
    "transform, rejects: none": (
        "transform", f"schema={SCHEMA}", "to=gross", "rejects=none",
        "sql=select id, round(amount * 1.19, 2) as gross, country, note from input where amount > 5",
    ),
    "windows by country and minute": (
        "transform", f"schema={SCHEMA}", "to=minutes",
        "sql=select window.start as start, country, count(*) as orders, sum(amount) as revenue, "
        "percentile_approx(amount, 0.95) as p95 from (select *, timestamp_millis(at) as time from input) "
        "watermark time delay of interval 1 minute group by window(time, '1 minute'), country",
    ),
}  # fmt: skip


def body(number: int) -> bytes:
    """An order; one in a thousand is no JSON."""
    order = {
        "id": number, "at": 1_790_000_000_000 + number, "customer": f"customer-{number % 9973:06d}",
        "country": random.choice(("de", "fr", "nl", "pl")), "amount": round(random.uniform(1, 500), 2),
        "items": number % 7, "note": random.randbytes(32).hex(),
    }  # fmt: skip
    text = json.dumps(order).encode()
    return text if number % 1000 else text[:-1]


def publish(broker: Broker, topic: str, first: int, count: int) -> int:
    """Publish so many orders; the bytes of one, on average."""
    url, total = f"http://{broker.doors['HTTP']}/mpub?topic={topic}&binary=true", 0
    for start in range(first, first + count, 10_000):
        bodies = [body(number) for number in range(start, min(start + 10_000, first + count))]
        framed = b"".join(struct.pack(">i", len(each)) + each for each in bodies)
        urllib.request.urlopen(url, struct.pack(">i", len(bodies)) + framed, timeout=60).close()
        total += sum(map(len, bodies))
    return total // count


def run(spark: Any, broker: Broker, data: Path, topic: str, kind: str, *settings: str) -> None:
    specs = spec.load(kind, [f"topics={topic}", *settings], {"nsqd": [broker.doors["HTTP"]]})
    running = PipelineRun(specs, RunRequest(data, once=True))
    running.check()
    assert running.run(spark, lambda progress: None), running.jobs[0].progress.error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--only", default="", help="cases whose name begins so")
    chosen = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="lapwing-transform-"))
    (place / "nsqd").mkdir()
    broker = Broker(str(place / "nsqd"))
    NOT_OURS.add(broker.process.pid)
    try:
        spark = local_session("benchmark", conf=CONF)
        for topic in ("few", "orders"):  # a channel that nobody reads keeps the messages for all cases
            for what in (f"topic/create?topic={topic}", f"channel/create?topic={topic}&channel=kept"):
                urllib.request.urlopen(f"http://{broker.doors['HTTP']}/{what}", b"").close()
        publish(broker, "few", 0, WARMING)
        size = publish(broker, "orders", 0, chosen.messages)
        say("messages", f"{chosen.messages:,} of {size} bytes")
        for number, (name, (kind, *settings)) in enumerate(CASES.items()):
            if name.startswith(chosen.only):
                run(spark, broker, place / f"warm{number}", "few", kind, *settings)
                work = (spark, broker, place / f"case{number}", "orders", kind, *settings)
                seconds, used = measured(lambda work=work: run(*work))  # type: ignore[misc]
                say(name, rates(chosen.messages, seconds, used))
        spark.stop()
    finally:
        broker.process.terminate()
        broker.process.wait()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
