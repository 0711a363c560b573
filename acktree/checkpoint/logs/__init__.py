"""The participants of the commit log, and the log."""
