"""The demo: real conversations over worker processes, of which one is killed, and a verification of the result."""
