"""Doors for Python's frameworks: each package runs a framework's tasks over lapwing, and needs the framework.

They use the client alone; `pip install 'lapwing[django]'` installs what `lapwing.contrib.django` needs, and so on.
"""
