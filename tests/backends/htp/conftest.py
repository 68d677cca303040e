"""A backend for the tests of a module, and a context for each test."""

import pytest

from isthmus import qnn


@pytest.fixture(scope="module")
def backend():
    with qnn.Backend("htp") as opened:
        yield opened


@pytest.fixture
def context(backend):
    with backend.create_context() as created:
        yield created
