"""Conversion of graphs that already use QNN's operations, as found in DLCs and model libraries."""
