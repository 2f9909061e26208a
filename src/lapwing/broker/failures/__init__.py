"""Failing messages: how failures are counted, when a message is retried, and how it becomes a dead letter.

`failures` counts, `retry` delays, `overflow` gives up what does not fit; `dead_letter_mover` publishes what channels
give up to dead-letter topics. `dead_letter_link` is what has to be known of that after a crash.
"""
