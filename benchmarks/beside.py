"""Our nsqd beside another server under the same load.

    python benchmarks/beside.py redis pub
    python benchmarks/beside.py nats sub --count 500000

Both servers run on this machine, one after the other, and write every message to disk without waiting for it.
"""

import argparse
import sys

from peers import named, ratio_text

from lapwing.errors import LapwingError
from lapwing.tools.bench import loads, report
from nsqd import nsqd

LOADS = {"pub": loads.publish, "sub": loads.consume}


def main() -> None:
    """Measure, and print both results and their ratio."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("peer", choices=("redis", "nats", "rabbitmq"))
    options.add_argument("load", choices=sorted(LOADS))
    options.add_argument("--count", type=int, default=1_000_000)
    chosen = options.parse_args()
    try:
        beside = named(chosen.peer)
        settings = loads.LoadSettings("bench", count=chosen.count)
        with nsqd() as running:
            ours = LOADS[chosen.load](running.target, settings)
        peer = beside(ours, settings)
    except LapwingError as error:
        sys.exit(str(error))
    print("\n".join([report.text(ours), report.text(peer), ratio_text(ours, peer)]))


if __name__ == "__main__":
    main()
