"""Clusters of several brokers."""
