"""Sockets: listening, TLS, and all connections of a daemon in one epoll set."""
