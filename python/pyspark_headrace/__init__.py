"""Registers ``format("headrace")`` by itself; PySpark seeks ``DefaultSource`` in all modules named ``pyspark_*``."""

try:
    from headrace.spark import HeadraceDataSource as DefaultSource
except ImportError:
    # An older PySpark, or a broken installation: an error here would take all other Python data sources down too.
    __all__ = []
else:
    __all__ = ["DefaultSource"]
