"""`/config`."""

from dataclasses import fields

import pytest
from doors import Node

from lapwing.broker.settings.options import Options
from lapwing.net.logs import Level

# fmt: off
SPECIFIED = [
    "id", "log_level", "log_prefix", "tcp_address", "http_address", "https_address", "broadcast_address",
    "broadcast_tcp_port", "broadcast_http_port", "nsqlookupd_tcp_addresses", "auth_http_addresses",
    "auth_http_request_method", "http_client_connect_timeout", "http_client_request_timeout", "topology_region",
    "topology_zone", "data_path", "mem_queue_size", "max_bytes_per_file", "sync_every", "sync_timeout",
    "queue_scan_selection_count", "queue_scan_worker_pool_max", "msg_timeout", "max_msg_timeout",
    "max_msg_size", "max_body_size", "max_output_buffer_size", "max_output_buffer_timeout",
    "min_output_buffer_timeout", "output_buffer_timeout", "max_channel_consumers", "statsd_address",
    "statsd_prefix", "statsd_interval", "statsd_mem_stats", "statsd_udp_packet_size",
    "statsd_exclude_ephemeral", "e2e_processing_latency_window_time", "e2e_processing_latency_percentiles",
    "tls_cert", "tls_key", "tls_client_auth_policy", "tls_root_ca_file", "tls_required", "tls_min_version",
    "deflate", "max_deflate_level", "snappy", "enable_experiment", "max_heartbeat_interval", "max_rdy_count",
    "max_req_timeout",
]
# fmt: on


@pytest.mark.parametrize("key", SPECIFIED)
async def test_every_option_of_nsq_can_be_read(key: str) -> None:
    node = Node()

    assert (await node.ask("GET", f"/config/{key}"))[0] == 200


@pytest.mark.parametrize("key", ["config", "version", "verbose", "node_id", "lookupd_tcp_address", "worker_id"])
async def test_flags_without_a_key_are_no_options(key: str) -> None:
    node = Node()

    assert await node.ask("GET", f"/config/{key}") == (400, '{"message":"INVALID_OPTION"}')


async def test_what_was_filled_in_is_what_is_shown() -> None:
    node = Node(tls_required=1, e2e_processing_latency_percentiles=(0.99, 0.5))

    assert await node.ask("GET", "/config/statsd_prefix") == (200, "nsq.node_example_4151.")
    assert await node.ask("GET", "/config/broadcast_http_port") == (200, "4151")
    assert await node.ask("GET", "/config/id") == (200, "7")
    assert await node.ask("GET", "/config/tls_required") == (200, "1")
    assert await node.ask("GET", "/config/tls_min_version") == (200, "771")
    assert await node.ask("GET", "/config/e2e_processing_latency_percentiles") == (200, "[0.99,0.5]")


async def test_the_log_level_changes_at_once() -> None:
    node = Node()
    answer = await node.ask("PUT", "/config/log_level", b"WARN")

    assert answer == (200, "3")
    assert node.log.level is Level.WARN


async def test_null_means_no_lookupd() -> None:
    node = Node()
    first = await node.ask("PUT", "/config/nsqlookupd_tcp_addresses", b'["a:1","b:2"]')
    second = await node.ask("PUT", "/config/nsqlookupd_tcp_addresses", b"null")

    assert first == (200, '["a:1","b:2"]')
    assert second == (200, "[]")


def test_no_option_is_left_without_a_description() -> None:
    undescribed = [field.name for field in fields(Options) if "setting" not in field.metadata]

    assert undescribed == ["deferred_limit"]
