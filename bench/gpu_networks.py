"""Well-known networks on a GPU beside PyTorch's CUDA graphs of the same networks, floats of 32 bits.

    python bench/gpu_networks.py [--networks NAME,...] [--rounds N] [--seconds S] [--json OUT]

Ours are the files of `tests/support/architectures.py`; PyTorch's are torchvision's, with batch normalization folded, as
CUDA graphs with NCHW and NHWC memory, without TF32. Inputs and outputs stay in the device's memory. Each execution is
waited for. The faster of PyTorch's two counts. `launches` is the number of ours. Networks that torchvision does not
have are measured alone.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from races import OURS, Contestant, geometric_mean, race

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import architectures

from isthmus import qnn
from isthmus.backends.gpu.graph import GpuGraphDriver
from isthmus.backends.gpu.runtime.device import choose

ARGUMENTS: dict[str, dict[str, Any]] = {"googlenet": {"init_weights": False, "aux_logits": False}}
"""What torchvision's functions need besides the absence of weights."""


def ours(file: Path, feeds: dict[str, np.ndarray]) -> tuple[Contestant, int]:
    """The network in memory of the device, and the number of its launches."""
    backend = qnn.Backend("gpu")
    context = backend.create_context()
    graph = context.compose(file)
    graph.finalize()
    infos = (*graph.input_tensors, *graph.output_tensors)
    buffers = [qnn.gpu.allocate(backend, info.nbytes) for info in infos]
    handles = context.mem_register(
        [
            qnn.MemDescriptor(
                info.dims, info.dtype, qnn.DescriptorType.CUSTOM,
                custom=qnn.gpu.GpuMemInfo(qnn.gpu.MemType.OPENCL, buffer),
            )
            for info, buffer in zip(infos, buffers, strict=True)
        ]
    )  # fmt: skip
    tensors = [qnn.ClientTensor(info.name, mem_handle=each) for info, each in zip(infos, handles, strict=True)]
    bound = graph.bind(tensors[: len(feeds)], tensors[len(feeds) :])

    def close() -> None:
        bound.close()
        context.free()
        for buffer in buffers:
            buffer.close()
        backend.free()

    assert isinstance(graph.driver, GpuGraphDriver)
    return Contestant(OURS, bound.execute, close), len(graph.driver.program.launches)


def theirs(name: str, shape: tuple[int, ...]) -> list[Contestant]:
    """PyTorch's CUDA graphs of a network; none where torchvision does not have it, or there is no device."""
    try:
        torch, torchvision = map(importlib.import_module, ("torch", "torchvision"))
        fusing = importlib.import_module("torch.fx.experimental.optimization")
    except ImportError:
        return []
    if not torch.cuda.is_available() or name not in torchvision.models.list_models():
        return []
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    plain = torchvision.models.get_model(name, weights=None, **ARGUMENTS.get(name, {})).eval()
    found = []
    for layout, memory in (("NCHW", torch.contiguous_format), ("NHWC", torch.channels_last)):
        model = fusing.fuse(plain).cuda().to(memory_format=memory)
        x = torch.randn(shape, device="cuda").to(memory_format=memory)
        found.append(Contestant(f"PyTorch {layout}", _captured(torch, model, x)))
    return found


def _captured(torch: Any, model: Any, x: Any) -> Callable[[], None]:
    """A function that replays the CUDA graph of a network and waits for it."""
    side = torch.cuda.Stream()
    with torch.no_grad():
        with torch.cuda.stream(side):
            for _ in range(3):
                model(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    replay.owners = (model, x, y)  # type: ignore[attr-defined]
    return replay


def compare(name: str, folder: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Race one network and print its row."""
    built = architectures.build(name)
    file = folder / f"{name}.onnx"
    onnx.save(built.model, file)
    own, launches = ours(file, built.feeds)
    contestants = [own, *theirs(name, built.feeds["x"].shape)]
    race(contestants, rounds, seconds)
    times = {each.name: statistics.median(each.seconds) for each in contestants}
    peer = min((value for key, value in times.items() if key != OURS), default=None)
    ratio = times[OURS] / peer if peer is not None else None
    columns = "  ".join(f"{key} {value * 1e6:,.0f} us" for key, value in times.items())
    print(f"{name:20} launches {launches:4}  {columns}  {'' if ratio is None else f'{ratio:.2f}'}", flush=True)
    return {"network": name, "launches": launches, "seconds": times, "ratio": ratio}


def main() -> None:
    """Read the arguments, run the races and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(architectures.BUILDERS), help="names with commas between (all)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each race (5)")
    parser.add_argument("--seconds", type=float, default=0.2, help="slice of each contestant in a round (0.2)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write every figure to this file")
    arguments = parser.parse_args()
    device = choose()
    print(f"{device.name}, {device.platform_name}, driver {device.driver}")
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            compare(name, Path(folder), arguments.rounds, arguments.seconds) for name in arguments.networks.split(",")
        ]
    mean = geometric_mean(row["ratio"] for row in rows)
    if mean is not None:
        print(f"geometric mean {mean:.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"device": device.name, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
