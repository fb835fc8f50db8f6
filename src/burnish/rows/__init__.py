"""Rows: tables of measurements that others published, read as settings that can be priced."""

from burnish.rows.measured import Measured
from burnish.rows.training import Row, Setting, read_rows

__all__ = ["Measured", "Row", "Setting", "read_rows"]
