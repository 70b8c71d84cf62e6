"""Registers ``format("headrace")`` by itself; PySpark seeks ``DefaultSource`` in all modules named ``pyspark_*``.

The source is loaded when it is asked for: `pyspark_headrace.daemon` must start without it. A worker of Spark's that
loads this package, with the source or on its search, is quietened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_headrace.unread import settle_worker

if TYPE_CHECKING:
    from headrace.spark import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]

settle_worker()


def __getattr__(name: str) -> type[DefaultSource]:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from headrace.spark import HeadraceDataSource  # noqa: PLC0415  (see above)
    except ImportError as missing:
        # An older PySpark, or a broken installation: any other error would take all Python data sources down.
        raise AttributeError(f"{__name__} has no source here: {missing}") from missing
    return HeadraceDataSource
