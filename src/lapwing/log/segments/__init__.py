"""The files of a log: frames, index and headers of a segment; how they are written, read, recovered and deleted."""
