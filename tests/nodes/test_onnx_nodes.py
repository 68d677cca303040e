"""The ONNX project's own node tests, run through a session.

Every case ends as passed, failed or skipped with the reason why it is out of scope. Cases that fail and are
listed in `known_failures.txt` are expected to: a new failure fails the suite, and so does a line in that file
whose case passes by now. Of the cases in scope at least 99 % must pass, so that file may name no more than the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import node_cases
import numpy as np
import pytest
from node_cases import Array, Case
from support import compilation, zoo
from support.suites import LONG

import isthmus
from isthmus.backends.seam import native
from isthmus.engine.native.program import Program
from isthmus.engine.native.target import Target, host, portable
from isthmus.frontends import load
from isthmus.graph.datatypes import from_bfloat16

PASS_SHARE = 0.99
MAX_OUT_OF_SCOPE = 230
"""The most cases that may be out of scope, each for the reason that `node_cases` gives."""
KNOWN_FAILURES = Path(__file__).with_name("known_failures.txt")


@dataclass(frozen=True)
class Outcome:
    """What became of a case, and why it did not pass."""

    verdict: Literal["passed", "refused", "wrong"]
    reason: str = ""


def _all_cases() -> list[Case]:
    try:
        return list(node_cases.cases())
    except zoo.Unavailable:
        return []


@functools.cache
def known_failures() -> dict[str, str]:
    """Name and reason of each case that is known to fail."""
    lines = (line.partition("#") for line in KNOWN_FAILURES.read_text().splitlines())
    return {name.strip(): reason.strip() for name, _, reason in lines if name.strip()}


def outcome(case: Case) -> Outcome:
    """Run a case."""
    feeds, constants, expected = case.arrays()
    try:
        with isthmus.Session(case.model_path, constants=constants) as session:
            answers = session.run(feeds, allow_nan=True)
    except isthmus.QnnError as refusal:
        return Outcome("refused", str(refusal))
    except Exception as failure:
        # Anything else is a defect, but one case must not hide the others.
        return Outcome("wrong", f"{type(failure).__name__}: {failure}")
    for name, reference in expected.items():
        if name not in answers:
            return Outcome("wrong", f"no output {name}")
        answer = np.asarray(answers[name])
        try:
            _compare(answer, reference, case.quantized)
        except AssertionError as difference:
            return Outcome("wrong", f"output {name}: {' '.join(str(difference).split())[:300]}")
    return Outcome("passed")


def _compare(answer: Array, reference: Array, quantized: bool) -> None:
    if reference.dtype.name == "bfloat16":
        # One step of 8 bits is the precision that a result has.
        assert answer.dtype == np.uint16, f"type {answer.dtype} instead of the bits of {reference.dtype}"
        np.testing.assert_allclose(from_bfloat16(answer), reference.astype(np.float32), rtol=2.0**-7, atol=1e-6)
        return
    assert answer.dtype == reference.dtype, f"type {answer.dtype} instead of {reference.dtype}"
    assert answer.shape == reference.shape, f"shape {answer.shape} instead of {reference.shape}"
    if np.issubdtype(reference.dtype, np.floating):
        # Where large terms cancel, as in a Fourier transform, the error is measured by those terms.
        largest = float(np.max(np.abs(reference), where=np.isfinite(reference), initial=0))
        np.testing.assert_allclose(answer, reference, rtol=1e-3, atol=1e-5 + 1e-6 * largest)
    elif quantized and reference.dtype.itemsize == 1:
        np.testing.assert_allclose(answer.astype(np.int32), reference.astype(np.int32), rtol=0, atol=1)
    else:
        np.testing.assert_array_equal(answer, reference)


def programs(cases: Iterable[Case], target: Target) -> Iterator[Program]:
    """Yield what the cases run, of those that can be prepared; the others say why when they are tested."""
    for case in cases:
        with suppress(Exception):
            yield native.prepare(load(case.model_path, constants=case.arrays()[1]), target=target).program


def selected(request: pytest.FixtureRequest, test: Callable) -> list[Case]:
    """The cases in scope that this run will ask of a test."""
    items = (item for item in request.session.items if getattr(item, "function", None) is test)
    return [case for item in items if (case := item.callspec.params["case"]).excluded is None]


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest) -> None:
    """The kernels of all cases, compiled at once."""
    compilation.compile_for(programs(selected(request, test_node), host()))


@LONG
@pytest.mark.parametrize("case", _all_cases(), ids=lambda case: case.name)
def test_node(case: Case, record_property: Callable[[str, str], None], request: pytest.FixtureRequest) -> None:
    record_property("onnx node", case.name)
    if case.excluded is not None:
        record_property("scope", "out of scope")
        pytest.skip(f"out of scope: {case.excluded}")
    record_property("scope", "in scope")
    request.getfixturevalue("kernels")
    result = outcome(case)
    known = known_failures().get(case.name)
    if result.verdict == "passed":
        assert known is None, f"{case.name} passes now: take it out of {KNOWN_FAILURES.name}"
        return
    if known is not None:
        pytest.xfail(known)
    pytest.fail(f"{case.operation}: {result.verdict}: {result.reason}", pytrace=False)


def _one_of_each_operation() -> list[Case]:
    """The largest case in scope of each operation."""
    in_scope = [case for case in _all_cases() if case.excluded is None]
    by_size = sorted(in_scope, key=lambda case: (case.model_path.stat().st_size, case.name))
    return list({case.operation: case for case in by_size}.values())


@pytest.fixture(scope="session")
def portable_kernels(request: pytest.FixtureRequest) -> None:
    cases = selected(request, test_a_case_of_each_operation_passes_on_the_portable_path)
    compilation.compile_for(programs(cases, portable()))


@LONG
@pytest.mark.parametrize("case", _one_of_each_operation(), ids=lambda case: case.operation)
def test_a_case_of_each_operation_passes_on_the_portable_path(
    case: Case, portable_kernels: None, take_code_path: Callable[[str], None]
) -> None:
    take_code_path("portable")
    if case.name in known_failures():
        pytest.skip(f"{case.name} is known to fail")
    result = outcome(case)
    assert result.verdict == "passed", result.reason


def test_few_cases_are_out_of_scope() -> None:
    excluded = [case for case in _all_cases() if case.excluded is not None]
    assert len(excluded) <= MAX_OUT_OF_SCOPE, f"{len(excluded)} of {len(_all_cases())} cases are out of scope"


def test_the_known_failures_leave_a_share_of_passed_cases_that_is_high_enough() -> None:
    in_scope = {case.name for case in _all_cases() if case.excluded is None}
    if not in_scope:
        pytest.skip("the ONNX node tests are not here; run `python tests/support/zoo.py fetch`")
    passed = in_scope - known_failures().keys()
    assert len(passed) >= PASS_SHARE * len(in_scope), f"{len(passed)} of {len(in_scope)} cases in scope pass"


def test_known_failures_name_cases_that_exist_and_say_why() -> None:
    names = {case.name for case in _all_cases()}
    if not names:
        pytest.skip("the ONNX node tests are not here; run `python tests/support/zoo.py fetch`")
    assert set(known_failures()) <= names
    assert all(known_failures().values()), "every line needs a reason: `test_name  # reason`"
