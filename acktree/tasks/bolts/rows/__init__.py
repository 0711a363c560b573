"""The rows of a frame while a bolt task works on them: their names, times and results."""
