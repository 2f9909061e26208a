"""Ready pipelines: `settings` turns YAML, Python or the command line into checked settings, `kinds` has one module for
each kind (what it does with a batch), and `run` starts them, looks after them and ends them. `python` is the decorator
with which a user writes one in Python.
"""
