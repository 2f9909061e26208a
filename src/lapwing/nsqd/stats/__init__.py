"""Figures that leave the node: Prometheus, statsd, memory and processor time."""
