"""The web UI, one module a page."""
