"""A browser for the pages of a module's tests."""

import pytest
from support import chromium


@pytest.fixture(scope="module")
def browser():
    with chromium.browser() as opened:
        yield opened
