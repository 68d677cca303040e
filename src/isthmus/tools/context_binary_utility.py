"""``isthmus context-binary-utility``: write the description of a context binary as JSON, with QNN's names.

Tensors are at info.graphs[0].info.graphInputs[0].info, as in the JSON of Qualcomm's tool. `isthmus inspect` prints the
same facts, and the memory that the graphs need, for people.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from isthmus import qnn
from isthmus.graph import BinaryInfo, Encoding, GraphInfo, Quantization, TensorInfo, TensorType
from isthmus.graph.figures import GraphFigures
from isthmus.tools.files import file_name, refuse_overwrite, write_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    parser.add_argument("--context_binary", type=file_name, required=True, metavar="BIN", help="a context binary")
    where = "where to write the description (default: standard output)"
    parser.add_argument("--json_file", type=file_name, metavar="FILE", help=where)


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    refuse_overwrite(f"--json_file {options.json_file}", options.json_file, options.context_binary)
    text = json.dumps(describe(qnn.SystemContext().get_binary_info(options.context_binary)), indent=2)
    if options.json_file is None:
        print(text)
    else:
        write_file(options.json_file, f"{text}\n".encode())
    return 0


def describe(binary: BinaryInfo) -> dict[str, Any]:
    """Return the description of a binary as plain data."""
    info = {
        "backend": binary.backend,
        "buildId": binary.producer,
        "contextBlobVersion": binary.version,
        "contextBlobSize": binary.nbytes,
        "numGraphs": len(binary.graphs),
        "graphs": [_graph(graph) for graph in binary.graphs],
    }
    return {"info": info}


def _graph(graph: GraphInfo) -> dict[str, Any]:
    """Return the description of a graph as plain data."""
    info = {
        "graphName": graph.name,
        "numGraphInputs": len(graph.inputs),
        "graphInputs": [_tensor(tensor, TensorType.APP_WRITE) for tensor in graph.inputs],
        "numGraphOutputs": len(graph.outputs),
        "graphOutputs": [_tensor(tensor, TensorType.APP_READ) for tensor in graph.outputs],
        **(_blobs(graph.figures) if graph.figures is not None else {}),
    }
    return {"info": info}


def _blobs(figures: GraphFigures) -> dict[str, Any]:
    """Return the memory of a graph on the chip, under the names of HTP's blobs."""
    first = {
        "spillFillBufferSize": figures.spill_fill,
        "vtcmSize": figures.vtcm,
        "optimizationLevel": figures.level,
        "htpDlbc": figures.dlbc,
        "numHvxThreads": figures.hvx_threads,
    }
    second = {
        "isSafeShareIO": figures.share_io,
        "ioTensorSize": figures.io,
        "opDataSize": figures.op_data,
        "constSize": figures.constants,
        "ddrTensorSize": figures.ddr,
        "sharedWeightsSize": figures.shared_weights,
    }
    return {"graphBlobInfo": {"info": first}, "graphBlobInfoV2": second}


def _tensor(tensor: TensorInfo, kind: TensorType) -> dict[str, Any]:
    """Return the description of an input or output as plain data."""
    info = {
        "name": tensor.name,
        "type": f"QNN_TENSOR_TYPE_{kind.name}",
        "dataType": f"QNN_DATATYPE_{tensor.dtype.name}",
        "quantizeParams": _quantization(tensor.quantization),
        "rank": len(tensor.dims),
        "dimensions": list(tensor.dims),
        "memType": f"QNN_TENSORMEMTYPE_{tensor.mem_type.name}",
    }
    return {"info": info}


def _quantization(quantization: Quantization | None) -> dict[str, Any]:
    """Return the parameters of a quantization as plain data, under the names of the fields in C."""
    if quantization is None:
        return {"definition": "QNN_DEFINITION_UNDEFINED", "quantizationEncoding": "QNN_QUANTIZATION_ENCODING_UNDEFINED"}
    pairs = [
        {"scale": scale, "offset": offset}
        for scale, offset in zip(quantization.scales, quantization.offsets, strict=True)
    ]
    params: dict[str, Any] = {
        "definition": "QNN_DEFINITION_DEFINED",
        "quantizationEncoding": f"QNN_QUANTIZATION_ENCODING_{quantization.encoding.name}",
    }
    if quantization.encoding is Encoding.SCALE_OFFSET:
        params["scaleOffset"] = pairs[0]
    else:
        params["axisScaleOffset"] = {"axis": quantization.axis, "numScaleOffsets": len(pairs), "scaleOffset": pairs}
    return params
