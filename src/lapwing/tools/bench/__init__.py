"""A load generator on the kernel: it sends prepared bytes and counts frames without creating objects."""
