"""The metrics of `/metrics?names=nsq`: figures of nsqd under the names that dashboards made for NSQ expect.

The names are NSQ's statsd keys as statsd_exporter maps them: Grafana's NSQ mixin and its alert rules read them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lapwing.broker.stats import ChannelStats, TopicStats

TOPIC: Final[tuple[tuple[str, str, str, Callable[[TopicStats], int]], ...]] = (
    ("message_count", "counter", "Messages published since start.", lambda topic: topic.message_count),
    ("message_bytes", "counter", "Bytes of bodies published since start.", lambda topic: topic.message_bytes),
    ("depth", "gauge", "Messages that wait in the topic.", lambda topic: topic.depth),
    ("backend_depth", "gauge", "Messages that wait in the topic on disk.", lambda topic: topic.backend_depth),
)
CHANNEL: Final[tuple[tuple[str, str, str, Callable[[ChannelStats], int]], ...]] = (
    ("message_count", "counter", "Messages put into the channel since start.", lambda each: each.message_count),
    ("depth", "gauge", "Messages ready to be delivered.", lambda each: each.depth),
    ("backend_depth", "gauge", "Messages that wait on disk.", lambda each: each.backend_depth),
    ("in_flight_count", "gauge", "Messages that consumers hold.", lambda each: each.in_flight_count),
    ("deferred_count", "gauge", "Messages that wait for their time.", lambda each: each.deferred_count),
    ("requeue_count", "counter", "Messages that consumers gave back.", lambda each: each.requeue_count),
    ("timeout_count", "counter", "Messages whose time in flight ran out.", lambda each: each.timeout_count),
    ("clients", "gauge", "Consumers that are connected.", lambda each: each.client_count),
)
