"""Copies a topic to a folder of Parquet files or to another topic, and such a folder to a topic (docs/copy.md)."""
