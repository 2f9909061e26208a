"""A topic: the one entrance for messages, and the rules that decide there.

`topic.Topic` writes the messages of a turn to its log and hands them to its channels. A door builds a `batch.Batch`;
`Topic.append` asks `admission` and `dedup`, and settles a `receipt` when the batch is written.
"""
