"""The classes of spouts, under the name of a module that programs import from."""

from acktree.streamparse.storm.spout import *  # noqa: F403  # all of it
