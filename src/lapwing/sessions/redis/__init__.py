"""The conversation with a Redis client: commands, found by name in `handlers`, as calls to the broker."""
