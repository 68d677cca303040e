"""Graphs that speak QNN already, as DLCs and model libraries hold them, become graphs of ours."""
