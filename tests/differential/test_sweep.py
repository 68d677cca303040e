"""The sweep of models, VTCM sizes and levels is the same, byte for byte, whenever the same library runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support import zoo
from support.suites import LONG

from isthmus.backends.vendor.library import find, is_installed
from isthmus.backends.vendor.measurement import build_of, measure

sys.path[:0] = [str(Path(__file__).parent)]

import sweep  # noqa: E402

ATTEMPTS = 3
"""How often a large graph is compiled: its search is limited by time, so a busy machine may find another result."""


@pytest.fixture(scope="module")
def build():
    if not is_installed():
        pytest.skip("needs the package onnxruntime-qnn")
    return build_of(find())


@LONG
@pytest.mark.parametrize("name", sweep.MODELS)
def test_the_figures_of_a_model_are_reproduced(name, build) -> None:
    expected = sweep.read_table()
    if build not in {row["build"] for row in expected.values()}:
        pytest.skip(f"the table is of another build than {build}")
    try:
        jobs = sweep.jobs_of(name)
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    for job in jobs:
        wanted = expected[name, str(job.target.vtcm_mb), str(job.target.level)]
        for _ in range(ATTEMPTS):
            found = sweep.row(job, build, measure(job.graphs, job.target, find()))
            if found == wanted:
                break
        assert found == wanted, job.target.title
