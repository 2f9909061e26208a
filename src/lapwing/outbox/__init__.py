"""A transactional outbox: messages are rows that commit with your own, and a relay publishes each once.

`lapwing.outbox.sqlalchemy` is for SQLAlchemy, `lapwing.outbox.django` for Django. Every row has a message-id; a relay
that dies between a publish and the end of its transaction publishes the row again with the same id, and a topic with a
`dedup_window` stores it once. So a relay publishes to one nsqd.
"""
