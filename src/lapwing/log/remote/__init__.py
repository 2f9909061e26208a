"""A copy of a node's logs outside of its machine: numbered records in an object store, a folder or PostgreSQL.

`engines` are the places that can hold one. All an engine must do is to create a named object unless there is one of
that name: that is how a process that was replaced notices. `remote_log` is the log on top of it, `record` what is in
it, `image` the state that its records amount to, `upload` and `restore` the ways from a data path and back.
"""
