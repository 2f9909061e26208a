"""Queries that tests run again and again, each with one checkpoint: a topic into Parquet, files into a topic."""

from pathlib import Path


class Query:
    """A topic into Parquet."""

    def __init__(self, spark, tmp_path, brokers, **options):
        self.spark = spark
        self.out = str(tmp_path / "out")
        self.checkpoint = str(tmp_path / "checkpoint")
        self.options = {"topic": "orders", "startingOffsets": "earliest", "retryTimeout": "5s", **options}
        if brokers:
            self.options["nsqd"] = ",".join(broker.address for broker in brokers)

    def start(self, **trigger):
        frame = self.spark.readStream.format("lapwing").options(**self.options).load()
        writer = frame.writeStream.format("parquet").option("path", self.out)
        return writer.option("checkpointLocation", self.checkpoint).trigger(**trigger).start()

    def run(self):
        """Read all there is; the progress of each batch."""
        query = self.start(availableNow=True)
        query.awaitTermination()
        return [progress for progress in query.recentProgress if progress["numInputRows"]]

    def bodies(self):
        rows = self.spark.read.parquet(self.out).select("node", "sequence", "body").collect()
        assert len({(row.node, row.sequence) for row in rows}) == len(rows), "a message came twice"
        return sorted(bytes(row.body).decode() for row in rows)

    def forget_last_commit(self):
        forget_last_commit(self.checkpoint)


class Copy:
    """JSON files into the topic `copy`."""

    def __init__(self, spark, tmp_path, *addresses, **options):
        self.spark = spark
        self.source = tmp_path / "source"
        self.source.mkdir()
        self.checkpoint = tmp_path / "checkpoint"
        self.options = {"topic": "copy", "retryTimeout": "5s", **options}
        if addresses:
            self.options["nsqd"] = ",".join(addresses)
        self.files = 0

    def add(self, *bodies):
        lines = "".join(f'{{"body": "{body}"}}\n' for body in bodies)
        (self.source / f"{self.files}.json").write_text(lines)
        self.files += 1

    def start(self):
        rows = self.spark.readStream.schema("body string").json(str(self.source))
        query = rows.writeStream.format("lapwing").options(checkpointLocation=str(self.checkpoint), **self.options)
        return query.trigger(availableNow=True).start()

    def run(self):
        self.start().awaitTermination()

    def forget_last_commit(self):
        forget_last_commit(self.checkpoint)


def forget_last_commit(checkpoint):
    """As if the driver had died before Spark wrote down that the last batch was done."""
    commits = sorted(Path(checkpoint, "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    Path(commits[-1].parent, f".{commits[-1].name}.crc").unlink(missing_ok=True)
