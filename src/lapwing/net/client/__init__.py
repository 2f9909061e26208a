"""HTTP clients, for asyncio and for threads, on one sans-IO definition of messages."""
