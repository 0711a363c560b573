"""How a message is written to a pipe: JSON, or msgpack."""
