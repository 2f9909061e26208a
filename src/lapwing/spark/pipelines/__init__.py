"""Data pipelines on Spark: archive, transform, rollup, replay and dedup, run with one command."""
