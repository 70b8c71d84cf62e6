"""Registers ``format("headrace")`` by itself: PySpark looks for ``DefaultSource`` in modules named ``pyspark_*``."""

from headrace.spark import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
