"""``python -m acktree.streamparse``: streamparse's commands."""

from acktree.streamparse.cli.sparse import main

if __name__ == "__main__":
    main()
