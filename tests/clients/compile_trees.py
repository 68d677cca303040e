"""Check that public clients of QNN compile against our headers: a table of files, and what they miss of QNN.

A tree is a checkout of a client's repository; a dependency is a folder with its headers (absl, GSL, flatbuffers and so
on). Neither is part of this project. Lay them out like this:

    TREES/executorch/        github.com/pytorch/executorch, with its submodule third-party/flatbuffers
    TREES/litert/            github.com/google-ai-edge/LiteRT
    TREES/onnxruntime/       github.com/microsoft/onnxruntime
    TREES/onnxruntime-qnn/   github.com/onnxruntime/onnxruntime-qnn
    TREES/mnn/               github.com/alibaba/MNN
    TREES/ggml-qnn/          github.com/chraac/llama.cpp, branch dev-refactoring
    TREES/mllm/              github.com/UbiquitousLearning/mllm, with its submodules third_party/fmt and flatbuffers
    DEPENDENCIES/NAME/       or NAME/include: headers that a tree's own build system would download or generate

docs/clients.md names the dependencies and their versions. Then run

    isthmus capi install LIBRARIES
    python tests/clients/compile_trees.py TREES --headers LIBRARIES/include --dependencies DEPENDENCIES

Every source of the trees' QNN folders goes through ``g++ -fsyntax-only``. The table is Markdown. A file that fails for
another reason than QNN (a header of another library that is missing here) is counted apart, since it says nothing about
us; ``--log FILE`` keeps what the compiler says. The exit status is 1 if a header or a name of QNN is missing, or if a
header of QNN comes from elsewhere.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path


@dataclass(frozen=True)
class Tree:
    """A client's sources.

    Parameters
    ----------
    sources
        Folders below the tree whose sources are compiled.
    without
        A pattern for files of these folders that are not for this machine, or not clients of QNN.
    include
        Folders below the tree for its own headers.
    flags
        Further flags of the compiler.
    own
        Dependencies that this tree does not take from `--dependencies` because it has its own.
    """

    sources: tuple[str, ...]
    without: str = r"(?!)"
    include: tuple[str, ...] = ()
    flags: tuple[str, ...] = ("-std=c++17",)
    own: frozenset[str] = field(default_factory=frozenset)


TREES = {
    "executorch": Tree(
        ("backends/qualcomm",),
        # Windows; code for the DSP itself, which needs the Hexagon SDK.
        without=r"/windows/|/direct_mode/|_dsp\b",
        include=(
            "..", "backends/qualcomm", "backends/qualcomm/runtime/pal/include", "runtime/core/portable_type/c10",
            "third-party/flatbuffers/include",
        ),
        flags=("-std=c++17", "-DC10_USING_CUSTOM_GENERATED_MACROS"),
        own=frozenset({"flatbuffers"}),
    ),
    "litert": Tree(
        ("litert/vendors/qualcomm",),
        without="_android",
        include=(".",),
        flags=("-std=c++20", "-fpermissive"),  # clang, which it is built with, allows what g++ calls permissive
    ),
    "onnxruntime": Tree(
        ("onnxruntime/core/providers/qnn",),
        include=("onnxruntime", "include/onnxruntime", "include/onnxruntime/core/session"),
        flags=("-std=c++20", "-DUSE_QNN=1", "-DONNX_NAMESPACE=onnx", "-DONNX_ML=1"),
    ),
    "onnxruntime-qnn": Tree(
        ("onnxruntime/core/providers/qnn",),
        include=("onnxruntime", "include/onnxruntime", "include/onnxruntime/core/session"),
        flags=("-std=c++20", "-DUSE_QNN=1", "-DBUILD_QNN_EP_STATIC_LIB=0"),
    ),
    "mnn": Tree(
        ("source/backend/qnn",),
        include=(
            ".", "include", "source", "schema/current", "3rd_party", "3rd_party/flatbuffers/include", "3rd_party/half",
            "source/backend/qnn/backend", "source/backend/qnn/convertor",
        ),
        flags=(
            "-std=c++17", "-D__fp16=_Float16", "-DENABLE_QNN_ONLINE_FINALIZE", "-DMNN_WITH_PLUGIN",
            "-DMNN_SUPPORT_TRANSFORMER_FUSE",
        ),
        own=frozenset({"flatbuffers"}),
    ),
    "ggml-qnn": Tree(
        ("ggml/src/ggml-qnn/qnn", "ggml/src/ggml-qnn/shared"),
        include=(
            "ggml/include", "ggml/src", "ggml/src/ggml-qnn", "ggml/src/ggml-qnn/qnn", "ggml/src/ggml-qnn/shared",
        ),
        flags=("-std=c++17", '-DGGML_QNN_DEFAULT_LIB_SEARCH_PATH=""'),
    ),
    "mllm": Tree(
        ("mllm/backends/qnn",),
        without=r"/custom-op-package/",  # an op package for the DSP itself, which needs the Hexagon SDK
        include=(
            ".", "third_party", "third_party/flatbuffers/include", "third_party/fmt/include",
            "third_party/half/include", "third_party/json", "third_party/utfcpp/include", "third_party/xxHash/include",
        ),
        flags=("-std=c++20",),
        own=frozenset({"dlpack", "flatbuffers", "json"}),
    ),
}  # fmt: skip

_HEADER = re.compile(r"fatal error: (\S*Qnn\w+\.hp*): No such file")
_NAME = re.compile(
    r"error: .*?'(?:const )?(?:\w+::)*(QNN_\w+|Qnn\w*_\w+)"
    # Some of QNN's names do not begin with QNN: whatever is not declared counts as QNN's until somebody has looked.
    r"|error: '(?:\w+::)*(\w+)' (?:was not declared|has not been declared|does not name a type|is not a member)"
    r"|error: .* has no member named '(\w+)'"
)


@dataclass(frozen=True)
class Verdict:
    """What the compiler says of a file: headers and names of QNN that it misses, and headers of QNN from elsewhere."""

    file: Path
    compiled: bool
    headers: frozenset[str]
    names: frozenset[str]
    foreign: frozenset[str]
    output: str


def sources(root: Path, tree: Tree) -> list[Path]:
    """List the sources of a tree that are compiled."""
    found = (file for folder in tree.sources for file in sorted((root / folder).rglob("*.c*")))
    return [
        file
        for file in found
        if file.suffix in (".c", ".cc", ".cpp") and not re.search(tree.without, file.relative_to(root).as_posix())
    ]


def folders(dependencies: Path | None, own: frozenset[str]) -> Iterator[Path]:
    """Yield the include folders of the dependencies, except those that the tree has itself."""
    for each in sorted(dependencies.iterdir()) if dependencies else ():
        if each.is_dir() and each.name not in own:
            yield each / "include" if (each / "include").is_dir() else each


def judge(file: Path, flags: Sequence[str], ours: Path, root: Path) -> Verdict:
    """Compile a file, for its syntax only, and look for headers of QNN that are neither ours nor the tree's own."""
    command = ["g++", "-fsyntax-only", "-w", "-MD", "-MF", "/dev/stdout", *flags, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    names = {header.name for header in ours.rglob("*.h*")}
    read = (Path(each) for each in done.stdout.replace("\\\n", " ").split())
    return Verdict(
        file,
        not done.returncode,
        frozenset(_HEADER.findall(done.stderr)),
        frozenset(name for found in _NAME.findall(done.stderr) for name in found if name),
        frozenset(str(each) for each in read if each.name in names and not {ours, root} & {*each.parents}),
        done.stderr,
    )


def main() -> int:
    """Compile every tree that is there, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("trees", type=Path)
    parser.add_argument("--headers", type=Path, required=True, help="the include folder that capi install wrote")
    parser.add_argument("--dependencies", type=Path, help="a folder with a folder for each dependency")
    parser.add_argument("--only", choices=TREES, help="one tree")
    parser.add_argument("--match", default="", help="a pattern for the paths of files")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--log", type=Path, help="a file for what the compiler says")
    arguments = parser.parse_args()

    log: list[str] = []
    missing = False
    print("| tree | files | compiled | QNN headers missing | QNN names missing | from elsewhere | other reasons |")
    print("|---|---|---|---|---|---|---|")
    for name, tree in TREES.items():
        root = arguments.trees / name
        if arguments.only not in (None, name) or not root.is_dir():
            continue
        include = [arguments.headers / "QNN", arguments.headers]
        include += [root / each for each in tree.include]
        include += folders(arguments.dependencies, tree.own)
        flags = [*tree.flags, *(f"-I{each}" for each in include)]
        files = [file for file in sources(root, tree) if re.search(arguments.match, str(file))]
        with ThreadPoolExecutor(arguments.jobs) as pool:
            look = partial(judge, flags=flags, ours=arguments.headers, root=root)
            verdicts = list(pool.map(look, files))
        headers = sorted({each for verdict in verdicts for each in verdict.headers})
        names = sorted({each for verdict in verdicts for each in verdict.names})
        foreign = sorted({each for verdict in verdicts for each in verdict.foreign})
        other = sum(not (each.compiled or each.headers or each.names) for each in verdicts)
        missing |= bool(headers or names or foreign)
        compiled = sum(each.compiled for each in verdicts)
        shown = (", ".join(each) or "0" for each in (headers, names, foreign))
        print("|", " | ".join([name, str(len(files)), str(compiled), *shown, str(other)]), "|", flush=True)
        log += [f"== {each.file}\n{each.output}" for each in verdicts if not each.compiled]
    if arguments.log:
        arguments.log.write_text("\n".join(log))
    return int(missing)


if __name__ == "__main__":
    sys.exit(main())
