"""ExecuTorch's qnn_executor_runner, in Python: runs a program (.pte) on inputs from files and writes its outputs.

    python qnn_executor_runner.py --model_path M.pte --input_list_path LIST --output_folder_path DIR

ExecuTorch's own tests start the program that the variable QNN_EXECUTOR_RUNNER names. The wheel has no such program, but
it has the runtime with the QNN backend as a Python module, which this one uses. The options that the tests of operators
pass are understood, and the files have the same names and contents.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from executorch.runtime import Method, Runtime

# ExecuTorch's numbers of data types.
DTYPES = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32,
    7: torch.float64, 11: torch.bool, 15: torch.bfloat16, 27: torch.uint16, 28: torch.uint32,
}  # fmt: skip


def shapes(method: Method, file: Path | None) -> list[tuple[int, ...]]:
    """Return the shapes of a method's inputs: those of a file with one line each, or else the largest ones."""
    if file is not None:
        lines = file.read_text().splitlines()
        return [tuple(int(size) for size in line.split(",") if size.strip()) for line in lines]
    return [tuple(method.metadata.input_tensor_meta(i).sizes()) for i in range(method.metadata.num_inputs())]


def tensor(file: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Read a tensor from a file of its bytes."""
    data = np.fromfile(file, np.uint8)
    if data.size != dtype.itemsize * math.prod(shape):
        raise ValueError(f"{file.name} has {data.size} bytes, and the input is {dtype} of shape {shape}")
    return torch.from_numpy(data).view(dtype).reshape(shape) if data.size else torch.empty(shape, dtype=dtype)


def bytes_of(value: torch.Tensor) -> bytes:
    """Return a tensor's bytes."""
    return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def run(arguments: Sequence[str]) -> None:
    """Run a program once for each line of the list of inputs."""
    parser = argparse.ArgumentParser()
    for name in ("model_path", "input_list_path", "output_folder_path"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("input_shape_path", "output_shape_path"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--method_index", type=int, default=0)
    given = parser.parse_args(arguments)
    program = Runtime.get().load_program(given.model_path)
    method = program.load_method(program._program.get_method_name(given.method_index))
    dtypes = [DTYPES[method.metadata.input_tensor_meta(i).dtype()] for i in range(method.metadata.num_inputs())]
    folder = given.input_list_path.parent
    for number, line in enumerate(given.input_list_path.read_text().splitlines()):
        files = [folder / name for name in line.split()]
        described = zip(files, dtypes, shapes(method, given.input_shape_path), strict=True)
        for index, output in enumerate(method.execute([tensor(*each) for each in described])):
            (given.output_folder_path / f"output_{number}_{index}.raw").write_bytes(bytes_of(output))


if __name__ == "__main__":
    import sys

    run(sys.argv[1:])
