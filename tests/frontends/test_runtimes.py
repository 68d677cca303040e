"""The formats' own runtimes: one that is missing or fails is reported in one line."""

from __future__ import annotations

import pytest

from isthmus.errors import Code, QnnError
from isthmus.frontends.runtimes import converted_errors, import_runtime


def test_a_runtime_that_is_not_installed_is_named_with_its_package() -> None:
    with pytest.raises(QnnError) as caught:
        import_runtime("no_such_runtime.interpreter", "no-such-runtime", "reference")
    assert caught.value.code is Code.COMMON_RESOURCE_UNAVAILABLE
    assert caught.value.what == "reference"
    assert caught.value.hint == "Install it with: pip install no-such-runtime"


def test_an_exception_of_a_runtime_becomes_one_line() -> None:
    line = r"model 'm': it cannot be run \(two lines\)"
    with pytest.raises(QnnError, match=line), converted_errors("model 'm'", "it cannot be run"):
        raise RuntimeError("two\nlines")


def test_an_error_of_ours_stays_as_it_is() -> None:
    error = QnnError(Code.GRAPH_CREATE_FAILED, "tensor 'w'", "its data is missing")
    with pytest.raises(QnnError) as caught, converted_errors("model 'm'", "it cannot be run"):
        raise error
    assert caught.value is error
