"""Pictures, and what their tests share."""
