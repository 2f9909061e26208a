"""Commands of a protocol as calls to the broker, and what it answers as bytes; nothing here waits or reads a clock."""
