"""All operators that are converted on their own, by name, from one table per family (see `Converter`).

The walk handles subgraph calls and variables.
"""

from isthmus.frontends.tflite import convolution, detection, elementwise, movement, recurrent, reduction, spectrum
from isthmus.frontends.tflite.elementwise import Converter

CONVERTERS: dict[str, Converter] = {
    **elementwise.CONVERTERS,
    **convolution.CONVERTERS,
    **detection.CONVERTERS,
    **movement.CONVERTERS,
    **reduction.CONVERTERS,
    **recurrent.CONVERTERS,
    **spectrum.CONVERTERS,
}
