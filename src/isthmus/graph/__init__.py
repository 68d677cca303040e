"""Graphs of QNN operations: tensors, quantization, operations with their rules, and the builder."""

from isthmus.graph.datatypes import DataType, TensorMemType, TensorType
from isthmus.graph.graph import Graph, Node
from isthmus.graph.info import BinaryInfo, GraphInfo, GraphSizes, MemoryNeeds, TensorInfo
from isthmus.graph.quantization import Encoding, Quantization
from isthmus.graph.tensor import Tensor

__all__ = [
    "BinaryInfo",
    "DataType",
    "Encoding",
    "Graph",
    "GraphInfo",
    "GraphSizes",
    "MemoryNeeds",
    "Node",
    "Quantization",
    "Tensor",
    "TensorInfo",
    "TensorMemType",
    "TensorType",
]
