"""Bytes to commands and frames and back, for either end of a conversation; never a socket."""
