"""The classes of bolts, under the name of a module that programs import from."""

from acktree.streamparse.storm.bolt import *  # noqa: F403  # all of it
