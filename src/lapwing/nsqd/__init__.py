"""The broker's doors; here asyncio begins."""
