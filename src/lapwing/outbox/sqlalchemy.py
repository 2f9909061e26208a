"""The outbox for SQLAlchemy.

    outbox = outbox_table(metadata)                            # a table beside yours; create it as you create them

    with Session(engine) as session, session.begin():
        session.add(order)
        add(session, outbox, "orders", b"...")                 # committed with the order, or not at all

    with Relay(engine, outbox, "127.0.0.1:4150") as relay:     # in a process or thread of its own
        relay.run()                                            # until relay.stop() is called
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from lapwing.client.bodies import Body
from lapwing.client.sync import SyncProducer
from lapwing.outbox import publishing
from lapwing.outbox.publishing import OutboxRow


def outbox_table(metadata: MetaData, name: str = "lapwing_outbox") -> Table:
    """Return the table of the outbox, added to `metadata`."""
    return Table(
        name,
        metadata,
        Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
        Column("topic", String(80), nullable=False),
        Column("body", LargeBinary, nullable=False),
        Column("headers", Text, nullable=False),
        Column("message_id", String(128), nullable=False, unique=True),
        Column("created", DateTime(timezone=True), nullable=False, server_default=func.now()),
    )


def add(
    session: Session | Connection,
    outbox: Table,
    topic: str,
    body: Body,
    *,
    headers: dict[str, str] | None = None,
    message_id: str | None = None,
) -> str:
    """Add a message to the outbox in the transaction of `session`, and return its message-id.

    Raises `ConfigError`, `TypeError` or `ValueError` for a message that nsqd would refuse.
    """
    content, text, name = publishing.check(topic, body, headers, message_id)
    session.execute(insert(outbox).values(topic=topic, body=content, headers=text, message_id=name))
    return name


class Relay(publishing.OutboxRelay):
    """Publishes the rows of an outbox to one nsqd, oldest first, and deletes them; see `OutboxRelay`."""

    database_errors = (SQLAlchemyError,)

    def __init__(
        self, engine: Engine, outbox: Table, nsqd: str, *, batch: int = 500, producer: SyncProducer | None = None
    ) -> None:
        self._engine = engine
        self._outbox = outbox
        super().__init__(nsqd, batch, producer)

    def relay_some(self) -> int:
        """Publish the oldest rows and return how many. Raises `ClientError` or `SQLAlchemyError`; rows stay then."""
        columns = self._outbox.c
        oldest = (
            select(columns.id, columns.topic, columns.body, columns.headers, columns.message_id)
            .where(columns.id.not_in(self._refused))
            .order_by(columns.id)
            .limit(self._batch)
            .with_for_update(skip_locked=True)
        )
        with self._engine.begin() as connection:
            rows = [OutboxRow(*row) for row in connection.execute(oldest)]
            done = self._published(rows)
            if done:
                connection.execute(delete(self._outbox).where(columns.id.in_(done)))
        return len(done)
