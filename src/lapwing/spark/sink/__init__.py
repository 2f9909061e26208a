"""Rows as messages: `batches` makes bodies of MPUBs out of Arrow, `writer` stages them on executors and publishes them
at the commit of the driver, once, and `home` is the broker that remembers which batches of a sink it has."""
