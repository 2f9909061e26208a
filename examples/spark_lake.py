"""Keeps a directory of Parquet files up to date with a topic: python examples/spark_lake.py 127.0.0.1:4151 orders DIR

Ends when it has all there is; run it again, from cron for instance, and it goes on where it stopped. With `--follow` it
stays and writes a file every 30 seconds. Its lag is the depth of the channel `lake`.
"""

import sys

from lapwing.spark.session import local_session


def main(nsqd: str, topic: str, directory: str, follow: str = "") -> None:
    spark = local_session("lake")
    messages = (
        spark.readStream.format("lapwing")
        .options(nsqd=nsqd, topic=topic, channel="lake", startingOffsets="earliest", includeHeaders="true")
        .load()
    )
    files = messages.writeStream.format("parquet").option("path", f"{directory}/data")
    files = files.option("checkpointLocation", f"{directory}/checkpoint")
    trigger = {"processingTime": "30 seconds"} if follow else {"availableNow": True}
    files.trigger(**trigger).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
