"""The commands of ``sparse``: each module has ``subparser_hook``, which adds it to a parser, and ``main``."""
