"""The doors of TCP clients: sockets, layers and timers for NSQ's protocol and for Redis.

`connection` knows no protocol; `nsq` and `redis` add theirs, and `intakes` connects the compiled roads of both with the
broker.
"""
