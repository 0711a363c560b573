"""Tables of SQL databases: their columns, and how rows get into them."""
