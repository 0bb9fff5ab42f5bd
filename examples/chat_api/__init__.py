"""A chat over HTTP: see `examples.chat_api.service`."""
