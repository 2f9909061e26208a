"""The nsqd and the databases of the tests."""

from outbox_stage import cluster, nsqd

__all__ = ["cluster", "nsqd"]
