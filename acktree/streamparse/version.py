"""The version of streamparse whose behaviour these classes have."""

__version__ = "5.0.1"
VERSION = (5, 0, 1)
