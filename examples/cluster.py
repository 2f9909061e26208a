"""The state of a cluster, and dead letters of the last day sent back: python examples/cluster.py 127.0.0.1:4161

The argument is the HTTP address of an nsqlookupd, of which all nsqds are asked at the same time.
"""

import sys

from lapwing import LetterFilter, NodesFailed, SyncAdmin


def main(lookupd: str = "127.0.0.1:4161") -> None:
    with SyncAdmin(lookupd=lookupd) as admin:
        for topic in admin.stats().topics.values():
            for channel in topic.channels:
                if channel.depth and not channel.consumers:
                    print(f"{topic.name}/{channel.name}: {channel.depth} messages and no consumer")
        letters = LetterFilter(reason="attempts", since="1d")
        try:
            dead = {topic.topic for found in admin.dead_topics().answers.values() for topic in found.topics}
            for name in sorted(dead):
                for node, task in admin.redrive(name, letters, rate="100/s").answers.items():
                    print(f"{name} on {node}: {task.redriven} letters sent back")
        except NodesFailed as error:
            sys.exit(str(error))  # names each node that refused, or did not answer


if __name__ == "__main__":
    main(*sys.argv[1:])
