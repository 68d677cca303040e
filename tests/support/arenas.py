"""The arena that LiteRT allocates for a model."""

from __future__ import annotations

from isthmus.split import runtimes
from isthmus.split.tflite import TfliteFile


def litert_arena(data: bytes) -> int:
    """LiteRT's arena without delegates, from the first byte of its lowest tensor to the last one of its highest."""
    file = TfliteFile(data, "model")
    interpreter = runtimes._interpreter(data, "BUILTIN_WITHOUT_DEFAULT_DELEGATES")
    # The tensors that are not constants, except those of unknown size.
    arrays = [interpreter.tensor(index)() for index in file.network.begin if file.network.values[index].bytes]
    starts = [int(array.__array_interface__["data"][0]) for array in arrays]
    ends = [start + int(array.nbytes) for start, array in zip(starts, arrays, strict=True)]
    return max(ends) - min(starts)
