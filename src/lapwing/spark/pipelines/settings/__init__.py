"""Settings of pipelines.

`values` parses single settings, `kind_settings` describes those of each kind, `spec` reads a whole pipeline from YAML,
Python or the command line, and `template` writes a commented file for each kind.
"""
