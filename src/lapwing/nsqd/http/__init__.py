"""The HTTP API of nsqd: one module for each family of routes, which only parse, call and answer."""
