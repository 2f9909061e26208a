"""Topics and channels: a synchronous machine; bytes and the time in, bytes out."""
