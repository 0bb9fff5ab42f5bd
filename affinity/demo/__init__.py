"""The demo: real conversations over worker processes, one of which is killed, and a verification of the result."""
