"""A load generator on the kernel: prepared bytes out, frames counted without becoming objects."""
