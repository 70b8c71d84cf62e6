"""Produce and fetch through memory that is shared with the broker."""
