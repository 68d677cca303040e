"""What a client pays for an execution by how it passes its memory: a binding, the same structures, fresh ones, views.

Each way is timed in turns with the others; figures are medians of the rounds, in microseconds and as a ratio to a bound
execution. The model is a streaming wake word of a few microseconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support import zoo

from isthmus import qnn
from isthmus.qnn import ClientTensor

ROUNDS, CALLS = 9, 2000


def ways(graph: qnn.Graph) -> dict[str, Callable[[], None]]:
    """The ways to execute a graph on raw memory, by name."""
    infos, count = graph.info.tensors, len(graph.info.inputs)
    arrays = {info.name: np.zeros(info.dims, info.dtype.numpy) for info in infos}
    names = list(arrays)

    def fresh(make: Callable[[np.ndarray], np.ndarray] = lambda array: array) -> list[ClientTensor]:
        return [ClientTensor(name, make(arrays[name])) for name in names]

    addresses = {name: (array.ctypes.data, array.nbytes) for name, array in arrays.items()}
    kept = tuple(fresh()[:count]), tuple(fresh()[count:])
    binding = graph.bind(*kept)

    def execute_fresh() -> None:
        tensors = fresh()
        graph.execute(tensors[:count], tensors[count:])

    def execute_addresses() -> None:
        tensors = [ClientTensor(name, at, nbytes=nbytes) for name, (at, nbytes) in addresses.items()]
        graph.execute(tensors[:count], tensors[count:])

    def execute_views() -> None:
        tensors = fresh(lambda array: array[:])
        graph.execute(tensors[:count], tensors[count:])

    return {
        "bound": binding.execute,
        "same structures": lambda: graph.execute(*kept),
        "fresh structures": execute_fresh,
        "fresh structures of addresses": execute_addresses,
        "fresh views": execute_views,
    }


def measure(name: str) -> None:
    """Print the table of one backend."""
    with qnn.Backend(name) as backend:
        graph = backend.create_context().compose(zoo.path("okay_nabu"))
        graph.finalize()
        table = ways(graph)
        times: dict[str, list[float]] = {way: [] for way in table}
        for _ in range(ROUNDS):
            for way, execute in table.items():
                execute()
                begin = time.perf_counter()
                for _ in range(CALLS):
                    execute()
                times[way].append((time.perf_counter() - begin) / CALLS * 1e6)
        bound = float(np.median(times["bound"]))
        print(f"{name}: okay_nabu, {ROUNDS} rounds of {CALLS} executions")
        for way, taken in times.items():
            print(f"  {way:32}{np.median(taken):8.2f} us  x{np.median(taken) / bound:.2f}")


if __name__ == "__main__":
    for backend_name in ("cpu", "htp"):
        measure(backend_name)
