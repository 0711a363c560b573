"""The version of pystorm whose behaviour these classes have."""

__version__ = "3.1.4"
VERSION = (3, 1, 4)
