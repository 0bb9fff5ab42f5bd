"""A page with a chat: tokens as they come, approvals, and forks. See `examples.chat_ui.service`."""
