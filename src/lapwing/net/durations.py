"""The old place of `lapwing.durations`."""

from lapwing.durations import parse, show

__all__ = ["parse", "show"]
