"""The HTTP server: bytes to requests, the table of routes, answers to bytes, one connection at a time."""
