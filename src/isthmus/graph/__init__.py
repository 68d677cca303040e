"""Graphs of QNN operations: tensors, quantization, operations with their rules, and the builder."""

from isthmus.graph.datatypes import DataType, MemType, TensorType
from isthmus.graph.graph import Graph, Node
from isthmus.graph.quantization import Encoding, Quantization
from isthmus.graph.tensor import Tensor

__all__ = ["DataType", "Encoding", "Graph", "MemType", "Node", "Quantization", "Tensor", "TensorType"]
