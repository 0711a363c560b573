"""Processes, signals and private files of the operating system, and connections by way of others."""
