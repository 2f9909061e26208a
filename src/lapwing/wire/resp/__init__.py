"""RESP2 and RESP3, Redis's protocol: bytes to requests, replies to bytes, and the words of the commands; sans-IO."""
