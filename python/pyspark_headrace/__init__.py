"""Registers ``format("headrace")`` by itself: PySpark looks for ``DefaultSource`` in every module named ``pyspark_*``."""

from headrace.spark import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
