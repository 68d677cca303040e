"""Leaves this folder out where LiteRT, which builds and judges its models, is not installed."""

from importlib.util import find_spec

collect_ignore_glob = ["conftest.py" if find_spec("ai_edge_litert") and find_spec("flatbuffers") else "*.py"]
