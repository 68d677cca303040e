"""Binaries that the tests of this folder load, and a clean start for what they count."""

import gc

import pytest

from backends.accelerator.harness import LONG_REPEATS, LONG_SIZE, LoadedGraph, gate_binary
from isthmus.backends.accelerator.process import Accelerator


@pytest.fixture(scope="session")
def content(tmp_path_factory):
    return gate_binary(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def long_content(tmp_path_factory):
    return gate_binary(tmp_path_factory.mktemp("models"), LONG_SIZE, LONG_REPEATS)


@pytest.fixture(scope="module")
def accelerator():
    with Accelerator() as running:
        yield running


@pytest.fixture
def loaded(accelerator, content):
    graph = LoadedGraph(accelerator, content)
    yield graph
    graph.close()


@pytest.fixture(autouse=True)
def _nothing_of_earlier_tests():
    """Collect garbage first: its descriptors would otherwise be closed in the middle of a test that counts them."""
    gc.collect()
