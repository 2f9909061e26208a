"""Work on a data path that no broker uses: verify, repair, export, and bring in the queues of NSQ's own nsqd."""
