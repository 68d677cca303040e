"""Leaves this folder out where LiteRT is not installed; what its tests share otherwise."""

import gc
from importlib.util import find_spec

import pytest

collect_ignore_glob = ["conftest.py" if find_spec("ai_edge_litert") and find_spec("flatbuffers") else "*.py"]


@pytest.fixture
def make():
    """Makes delegates, each with the lines that it says, and ends them after their interpreters."""
    from delegate.harness import LoggingDelegate

    delegates = []

    def new(backend="CPU", **options):
        delegates.append(LoggingDelegate(backend, **options))
        return delegates[-1]

    yield new
    gc.collect()
    for delegate in delegates:
        delegate.close()
