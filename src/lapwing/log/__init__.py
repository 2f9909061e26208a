"""One append-only log per topic; the only room that touches the disk."""
