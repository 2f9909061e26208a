"""Pipelines as processes.

`command` is what the user typed, `runner` starts Spark and the queries, each in its `context` with its `checkpoint`.
`home` has the files of a pipeline for other processes, `progress` what it has done so far, `preview` is a dry run, and
`upkeep` removes, resets and compacts a pipeline that does not run.
"""
