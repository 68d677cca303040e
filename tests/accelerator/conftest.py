"""Binaries that the tests of this folder load."""

import pytest
from accelerator_harness import LONG_REPEATS, LONG_SIZE, gate_binary


@pytest.fixture(scope="session")
def content(tmp_path_factory):
    return gate_binary(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def long_content(tmp_path_factory):
    return gate_binary(tmp_path_factory.mktemp("models"), LONG_SIZE, LONG_REPEATS)
