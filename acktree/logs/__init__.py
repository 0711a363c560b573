"""The loggers of acktree, their lines and levels."""
