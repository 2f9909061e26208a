"""Keeping data: checkpoints, index records, trimming, and the storage that topics are opened from."""
