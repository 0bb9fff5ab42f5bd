"""Conversations with a small chat model, whose KV cache stays with the session: see ``__main__``."""
