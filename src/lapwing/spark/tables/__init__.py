"""Tables that take each batch of a query once: `delta` (through delta-rs), plain Parquet (`stores`) and databases
(`jdbc`). `verify` proves that an archive is complete, `archive_views` shows its topics to SQL."""
