"""Registration with nsqlookupd, and the HTTP client for it and for auth servers."""
