"""Counts orders per country in a topic: python examples/spark_batch.py 127.0.0.1:4151 orders"""

import sys

from lapwing.spark.session import local_session


def main(nsqd: str, topic: str) -> None:
    spark = local_session("count by country")
    messages = spark.read.format("lapwing").option("nsqd", nsqd).load(topic)
    countries = messages.selectExpr("get_json_object(string(body), '$.country') as country")
    countries.groupBy("country").count().orderBy("country").show()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
