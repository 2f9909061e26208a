"""Topics as rows.

`offsets` is the pure part: the place of a query in every log, and what it reads next. `survey` asks the brokers what
their logs hold, `batch_reader` and `stream_reader` plan ranges from that beside the driver, and `range_reader` reads a
range on an executor, as `blocks` that become Arrow columns without a loop. `archived` adds the part of a log that only
an archive still has. `channel_hold` keeps two queries off one channel, and `losses` decides which gaps end a query.
`subscribe` is the other source: any NSQ server, through a `spool`.
"""
