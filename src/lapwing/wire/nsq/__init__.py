"""NSQ's bytes to and from commands and frames, both ends, without I/O."""
