"""The command line: runs topologies, watches them, gives them orders, and works on their checkpoints.

Each command is a process of its own. One module is one family of commands; ``main`` joins them. A command
takes the parsed arguments and returns or yields answers: a value for ``--json`` and the same as text. A
running topology is asked and ordered through its driver; files alone are used where none runs.
"""
