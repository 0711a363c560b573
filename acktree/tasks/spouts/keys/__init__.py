"""What messages are called: their keys and labels, and what follows from them."""
