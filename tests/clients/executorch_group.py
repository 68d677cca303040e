"""ExecuTorch compiles programs for several contexts, reads their spill-fill, and runs them together.

    python tests/clients/executorch_group.py make FOLDER    # writes programs and context binaries, prints the sizes
    python tests/clients/executorch_group.py run FOLDER COUNT    # loads the first programs, then runs each

Each prints a line of JSON. QNN_SDK_ROOT and LD_LIBRARY_PATH name our libraries, as for any client.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from executorch import exir
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils.utils import (
    dump_context_from_pte,
    generate_htp_compiler_spec,
    generate_qnn_executorch_compiler_spec,
    get_qnn_context_binary_alignment,
    to_edge_transform_and_lower_to_qnn,
    update_spill_fill_size,
)
from executorch.runtime import Runtime

ROWS = (96, 256, 192)
"""The rows of the tensors of three programs: the second needs most spill-fill."""
WIDTH, LAYERS = 64, 4


def chain(rows: int) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Return a model of several layers with its input; the tensors between them need memory."""
    torch.manual_seed(rows)
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    return torch.nn.Sequential(*layers).eval(), (torch.randn(rows, WIDTH),)


def make(folder: Path) -> dict[str, object]:
    """Compile the programs and write them; return the spill-fill that ExecuTorch reads from each, and for all."""
    options = generate_htp_compiler_spec(use_fp16=True, use_multi_contexts=True)
    specs = generate_qnn_executorch_compiler_spec(QcomChipset.SM8750, options, debug=True)
    lowered = [to_edge_transform_and_lower_to_qnn(*chain(rows), specs) for rows in ROWS]
    programs = [each.exported_program() for each in lowered]
    sizes = [update_spill_fill_size(each) for each in programs]
    # It sets the size of all in the last program of a list.
    together = [update_spill_fill_size([*programs, each]) for each in programs]
    config = exir.ExecutorchBackendConfig(segment_alignment=get_qnn_context_binary_alignment())
    for number, each in enumerate(lowered):
        file = folder.absolute() / f"program{number}.pte"
        file.write_bytes(each.to_executorch(config).buffer)
        [binary] = dump_context_from_pte(str(file))
        Path(binary).rename(file.with_suffix(".bin"))
    return {"sizes": sizes, "together": together}


def run(folder: Path, count: int) -> dict[str, object]:
    """Load programs, then run each; return the largest difference of any from PyTorch."""
    programs = [Runtime.get().load_program(str(folder / f"program{number}.pte")) for number in range(count)]
    methods = [each.load_method("forward") for each in programs]
    largest = 0.0
    for rows, method in zip(ROWS, methods, strict=False):
        model, inputs = chain(rows)
        with torch.no_grad():
            largest = max(largest, float((method.execute(list(inputs))[0] - model(*inputs)).abs().max()))
    return {"difference": largest}


if __name__ == "__main__":
    task, place, *more = sys.argv[1:]
    told = make(Path(place)) if task == "make" else run(Path(place), int(more[0]))
    print(json.dumps(told), flush=True)
