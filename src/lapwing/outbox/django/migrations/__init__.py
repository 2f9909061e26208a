"""The history of the table of the outbox."""
