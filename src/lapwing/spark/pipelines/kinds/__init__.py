"""One module for each kind of pipeline, and the parts that several kinds share.

`messages` has the options of source and sink, `parse` makes columns of bodies, `publish` makes messages of columns.
"""
