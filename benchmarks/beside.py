"""Our nsqd beside another server under the same load.

    python benchmarks/beside.py redis pub
    python benchmarks/beside.py nats fanout --count 50000

Both servers run on this machine, one after the other, and write every message to disk without waiting for it.
"""

import argparse
import sys

import peers

from lapwing.errors import LapwingError
from lapwing.tools.bench import loads, report
from lapwing.tools.bench.latency import latency
from nsqd import nsqd

LOADS = {"pub": loads.publish, "sub": loads.consume, "fanout": loads.fan_out, "latency": latency}


def main() -> None:
    """Measure, and print both results and their ratio."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("peer", choices=peers.NAMES)
    options.add_argument("load", choices=sorted(LOADS))
    options.add_argument("--count", type=int, default=1_000_000, help="messages; latency runs for 3 s instead")
    chosen = options.parse_args()
    channels = 8 if chosen.load == "fanout" else 1
    seconds = 3.0 if chosen.load == "latency" else None
    settings = loads.LoadSettings("bench", count=chosen.count, channels=channels, seconds=seconds)
    try:
        peers.named(chosen.peer)
        with nsqd() as running:
            ours = LOADS[chosen.load](running.target, settings)
        peer = peers.run(chosen.peer, chosen.load, settings)
    except LapwingError as error:
        sys.exit(str(error))
    print("\n".join([report.text(ours), report.text(peer), peers.ratio_text(ours, peer)]))


if __name__ == "__main__":
    main()
