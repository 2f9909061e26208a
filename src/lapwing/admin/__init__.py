"""The web UI and its JSON API; talks HTTP to nsqd and nsqlookupd only."""
