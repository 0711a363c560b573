"""Processes, signals and private files of the operating system."""
