"""The command line: what is done to a checkpoint while nobody runs on it."""
