"""The journal of a topic: the state of its channels in small records, folded when it is read."""
