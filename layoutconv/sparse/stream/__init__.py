"""Clouds that no GPU holds: chunks of a Morton curve, and rows on their way to a device."""
