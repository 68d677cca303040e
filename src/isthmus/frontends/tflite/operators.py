"""Every operator that converts by itself, by name; those that call subgraphs or hold variables are the walk's."""

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
