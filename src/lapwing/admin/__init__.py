"""nsqadmin: the web pages and the JSON API. Speaks only HTTP to nsqd and nsqlookupd."""
