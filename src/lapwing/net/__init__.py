"""Plumbing that the daemons share; importing this room alone pulls in nothing."""
