"""Compiles kernels on the host for tests that run on the emulated machine: one process, many kernels.

As a program it reads ``[kernel, target, assembly]`` a line and answers ``{"code": ...}`` or ``{"error": ...}``. On the
emulated machine this file is a pytest plugin, which has `harness` ask that program.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import Any

from isthmus.compiled.objects import CompileError
from isthmus.engine.native.compiler import compile_kernel
from isthmus.engine.native.target import Target, by_name


class HostCompiler:
    """Replaces the executor by which `harness` compiles kernels: a process on the host compiles them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def submit(
        self, function: Callable[..., Any], kernel: str, target: Target, assembly: bool = False
    ) -> Future[bytes | str]:
        """Compile on the host; the future has the result already."""
        assert function is compile_kernel
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([kernel, target.name, assembly]), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        done: Future[bytes | str] = Future()
        if "error" in answer:
            done.set_exception(CompileError(answer["error"]))
        else:
            code = base64.b64decode(answer["code"])
            done.set_result(code.decode() if assembly else code)
        return done


def pytest_collection_finish() -> None:
    """Let `harness` compile kernels on the host, now that the modules of the tests are loaded."""
    if "engine.native.harness" in sys.modules:
        sys.modules["engine.native.harness"]._compiler = cache(HostCompiler)  # type: ignore[attr-defined]


def main() -> None:
    """Answer requests until there are no more."""
    for line in sys.stdin:
        kernel, target, assembly = json.loads(line)
        try:
            code = compile_kernel(kernel, by_name(target), assembly)
            answer = {"code": base64.b64encode(code.encode() if isinstance(code, str) else code).decode()}
        except Exception as problem:  # whatever it is, it belongs to the test that asked
            answer = {"error": f"{type(problem).__name__}: {problem}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
