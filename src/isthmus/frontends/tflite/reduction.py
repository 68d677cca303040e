"""Operators over axes and blocks of an image: reductions, sorting, running sums, resizing, space and depth."""

from __future__ import annotations

from functools import partial

import numpy as np

from isthmus.frontends.tflite.elementwise import Converter
from isthmus.frontends.tflite.operator_context import OperatorContext
from isthmus.graph import DataType, Tensor


def _reduce(node: OperatorContext, op: str) -> list[Tensor]:
    """Convert to a reduction over constant axes; without axes it is a copy."""
    x = node.input(0)
    axes = node.axes(1, x.rank)
    if not axes:
        return node.finish(x)
    return [node.emit(op, [x], {"axes": axes, "keep_dims": bool(node.options["keep_dims"])})]


def _reduce_bool(node: OperatorContext, op: str) -> list[Tensor]:
    """Convert "any" or "all" to the maximum or minimum of zeros and ones."""
    x = node.input(0)
    axes = node.axes(1, x.rank)
    if x.dtype is not DataType.BOOL_8:
        node.refuse(f"input 0 must be BOOL_8, is {x.dtype.name}")
    if not axes:
        return node.finish(x)
    params = {"axes": axes, "keep_dims": bool(node.options["keep_dims"])}
    return [node.emit("Cast", [node.step(op, [node.cast(x, DataType.INT_32)], params)])]


def _argument(node: OperatorContext, op: str) -> list[Tensor]:
    """Convert to Argmax or Argmin along a constant axis."""
    x = node.input(0)
    return [node.emit(op, [x], {"axis": node.axis(node.integer(1), x.rank)})]


def _top_k(node: OperatorContext) -> list[Tensor]:
    node.output(1)
    k = node.integer(1)
    if k < 0:
        node.refuse(f"k must not be negative, is {k}")
    return node.emit_all("TopK", [node.input(0)], {"k": k})


def _cumsum(node: OperatorContext) -> list[Tensor]:
    x = node.input(0)
    params = {name: bool(node.options[name]) for name in ("exclusive", "reverse")}
    return [node.emit("CumulativeSum", [x], {"axis": node.axis(node.integer(1), x.rank), **params})]


def _resize(node: OperatorContext, op: str) -> list[Tensor]:
    """Convert to a resize of images to a constant height and width."""
    x, sizes = node.input_of_rank(0, 4), node.integers(1)
    if len(sizes) != 2 or min(sizes) < 1:
        node.refuse(f"the new size {sizes} must be a height and a width")
    params = {name: bool(node.options[name]) for name in ("align_corners", "half_pixel_centers")}
    return [node.emit(op, [x], params, dims=(x.dims[0], *sizes, x.dims[3]))]


def _depth_space(node: OperatorContext, op: str) -> list[Tensor]:
    """Convert to DepthToSpace or SpaceToDepth."""
    (block,) = node.positive("block_size")
    return [node.emit(op, [node.input_of_rank(0, 4)], {"block_size": [block, block]})]


def _batch_space(node: OperatorContext, op: str, amounts: str) -> list[Tensor]:
    """Convert blocks of one or two spatial axes; with one, a second axis of size 1 is added."""
    # `amounts` is the name of the parameter for what is padded before or cropped after.
    x = node.input_of_rank(0, 3, 4)
    spatial = x.rank - 2
    block, edges = node.integers(1), np.asarray(node.integers(2), np.int64)
    if len(block) != spatial or edges.size != 2 * spatial or min(block) < 1 or edges.min() < 0:
        node.refuse(f"block {block} and edges {edges.tolist()} do not fit {spatial} spatial axes")
    if spatial == 2:
        return [node.emit(op, [x], {"block_size": block, amounts: edges.reshape(2, 2)})]
    image = node.reshape(x, (x.dims[0], x.dims[1], 1, x.dims[2]))
    params = {"block_size": [block[0], 1], amounts: [edges.tolist(), [0, 0]]}
    result = node.step(op, [image], params)
    return node.finish(result, (*result.dims[:2], result.dims[3]))


CONVERTERS: dict[str, Converter] = {
    "ARG_MAX": partial(_argument, op="Argmax"),
    "ARG_MIN": partial(_argument, op="Argmin"),
    "BATCH_TO_SPACE_ND": partial(_batch_space, op="BatchToSpace", amounts="crops"),
    "CUMSUM": _cumsum,
    "DEPTH_TO_SPACE": partial(_depth_space, op="DepthToSpace"),
    "MEAN": partial(_reduce, op="ReduceMean"),
    "REDUCE_ALL": partial(_reduce_bool, op="ReduceMin"),
    "REDUCE_ANY": partial(_reduce_bool, op="ReduceMax"),
    "REDUCE_MAX": partial(_reduce, op="ReduceMax"),
    "REDUCE_MIN": partial(_reduce, op="ReduceMin"),
    "REDUCE_PROD": partial(_reduce, op="ReduceProd"),
    "RESIZE_BILINEAR": partial(_resize, op="ResizeBilinear"),
    "RESIZE_NEAREST_NEIGHBOR": partial(_resize, op="ResizeNearestNeighbor"),
    "SPACE_TO_BATCH_ND": partial(_batch_space, op="SpaceToBatch", amounts="pad_amount"),
    "SPACE_TO_DEPTH": partial(_depth_space, op="SpaceToDepth"),
    "SUM": partial(_reduce, op="ReduceSum"),
    "TOPK_V2": _top_k,
}
