"""The brokers as Spark's processes see them: which there are (`directory`), calls of their HTTP API that are repeated
while one is away (`http`), and one question to all of them, where a silent broker makes nobody wait (`inquiry`)."""
