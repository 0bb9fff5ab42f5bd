"""Real conversations over worker processes, of which one is killed, and what became of them."""
