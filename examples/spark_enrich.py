"""From topic to topic, exactly once: python examples/spark_enrich.py 127.0.0.1:4151 orders large_orders CHECKPOINT

Reads JSON orders, keeps the large ones, and publishes them with the place they came from in their headers.
"""

import sys

from lapwing.spark.session import local_session


def main(nsqd: str, source: str, target: str, checkpoint: str) -> None:
    spark = local_session("enrich")
    orders = spark.readStream.format("lapwing").options(nsqd=nsqd, topic=source, startingOffsets="earliest").load()
    fields = orders.selectExpr("*", "from_json(string(body), 'id bigint, amount double') as fields")
    large = fields.where("fields.amount > 100")
    messages = large.selectExpr("body", "map('source', topic, 'sequence', string(sequence)) as headers")
    query = messages.writeStream.format("lapwing").options(nsqd=nsqd, topic=target, checkpointLocation=checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
