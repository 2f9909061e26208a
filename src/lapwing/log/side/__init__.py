"""Side logs: messages that wait far longer than their neighbours, copied out of the log so that they pin no segment."""
