"""A stage to play on, in memory and on disk."""

from play import stage

__all__ = ["stage"]
