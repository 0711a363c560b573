"""What a run says in its log, and how much of it."""
