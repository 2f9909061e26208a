"""The nsqd and the databases of the tests."""

from outbox_stage import nsqd

from clusters import cluster

__all__ = ["cluster", "nsqd"]
