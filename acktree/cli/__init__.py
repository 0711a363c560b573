"""The command line: commands for a checkpoint on which no topology is running."""
