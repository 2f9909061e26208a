"""Topics and channels: a synchronous machine; bytes and the time in, bytes out.

`broker.Broker` has the topics of a node, and `turn_work` ends each round of the event loop: logs are written, channels
deliver, and what is too much waits for the next round.
"""
