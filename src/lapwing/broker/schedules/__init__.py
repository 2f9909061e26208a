"""Schedules: messages that the broker publishes by itself, at a time, every so often, or by a cron expression."""
