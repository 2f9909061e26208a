"""An order and its message commit together, or not at all: python outbox.py (needs SQLAlchemy)"""

import os
import signal

from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert
from sqlalchemy.orm import Session

from lapwing.outbox.sqlalchemy import Relay, add, outbox_table

engine, metadata = create_engine("sqlite:///shop.db"), MetaData()
orders = Table("orders", metadata, Column("id", Integer, primary_key=True), Column("article", String))
outbox = outbox_table(metadata)


def buy(article: str) -> None:
    with Session(engine) as session, session.begin():
        session.execute(insert(orders).values(article=article))
        add(session, outbox, "bought", {"article": article})


if __name__ == "__main__":
    metadata.create_all(engine)
    buy("tea")
    with Relay(engine, outbox, os.environ.get("LAPWING_NSQD_TCP", "127.0.0.1:4150")) as relay:
        signal.signal(signal.SIGTERM, lambda *_: relay.stop())
        relay.run()  # publishes what is there and what comes, also after failures of nsqd or the database
