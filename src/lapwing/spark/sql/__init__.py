"""Topics for SQL: the messages that an archive has and those that only the brokers have yet (`topics`), with a column
for each field of JSON bodies (`json_fields`), as views of DuckDB (`duckdb_views`) or of Spark (`spark_views`)."""
