"""The numbers of a topology in the driver: books, totals, data points, consumers."""
