"""Operations of people and of pipelines: claim, seek, drain, redrive, and publish staged batches."""
