"""The asyncio library that users import: producer, consumer, discovery; and the daemons' HTTP APIs, called."""
