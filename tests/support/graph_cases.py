"""Calls of operations that fit, with the shapes they give: (operation, operands, parameters, shapes of outputs).

An operand is its dimensions, or (data type, dimensions) where it is not FLOAT_32, or None.
"""

from __future__ import annotations

from isthmus.graph import DataType

F32, I32, BOOL, U8 = DataType.FLOAT_32, DataType.INT_32, DataType.BOOL_8, DataType.UINT_8
NO_PADS = [[0, 0], [0, 0]]
CONV = {"stride": [1, 1], "pad_amount": NO_PADS}
SAME = {"stride": [2, 2], "pad_amount": [[0, 1], [0, 1]]}
POOL = {"filter_size": [2, 2], "stride": [2, 2], "pad_amount": NO_PADS}
POOL_3D = {"filter_size": [2] * 3, "stride": [2] * 3, "pad_amount": [[0, 0]] * 3}
DETECTIONS = {
    "max_detections": 4, "max_classes_per_detection": 2, "num_classes": 2, "score_threshold": 0.3, "iou_threshold": 0.5,
    "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0,
}
GATES = [(4, 3)] * 3 + [(4, 4)] * 3
LSTM = [(5, 2, 3), *GATES, *[(4,)] * 3, (2, 4), (2, 4)]
WHOLE_LSTM = [
    (5, 2, 3), *[(4, 3)] * 3, *[(4, 6)] * 3, *[(4,)] * 3, (2, 6), (2, 4), *[None] * 4,
    (4, 3), (4, 6), *[(4,)] * 4, (6, 4), (6,),
]
"""With an input gate of its own, peepholes, and a projection from 4 to 6."""

SHAPES: list[tuple[str, list, dict, list]] = [
    ("Conv1d", [(1, 10, 3), (3, 3, 8), (8,)], {"stride": 2, "pad_amount": [1, 1]}, [(1, 5, 8)]),
    ("Conv2d", [(2, 9, 8, 4), (3, 3, 2, 6)], CONV | {"group": 2, "dilation": [2, 1]}, [(2, 5, 6, 6)]),
    ("Conv2d", [(1, 224, 224, 3), (3, 3, 3, 32)], SAME, [(1, 112, 112, 32)]),
    (
        "Conv3d", [(1, 4, 5, 6, 2), (2, 2, 2, 2, 7)], {"stride": [1, 1, 1], "pad_amount": [[0, 0]] * 3},
        [(1, 3, 4, 5, 7)],
    ),
    ("DepthWiseConv1d", [(1, 9, 4), (3, 1, 8)], {"stride": 1, "pad_amount": [0, 2]}, [(1, 9, 8)]),
    ("DepthWiseConv2d", [(1, 7, 7, 4), (3, 3, 1, 4), (4,)], {"stride": [2, 2], "pad_amount": NO_PADS}, [(1, 3, 3, 4)]),
    ("TransposeConv1d", [(1, 5, 4), (3, 4, 2)], {"stride": 2, "pad_amount": [1, 0], "group": 2}, [(1, 10, 4)]),
    (
        "TransposeConv2d", [(1, 4, 5, 6), (3, 3, 6, 2)],
        {"stride": [2, 2], "pad_amount": [[1, 1], [0, 0]], "output_padding": [1, 0]}, [(1, 8, 11, 2)],
    ),
    (
        "TransposeConv3d", [(1, 2, 2, 2, 3), (2, 2, 2, 3, 5)],
        {"stride": [1, 1, 1], "pad_amount": [[0, 0]] * 3, "dilation": [2, 1, 1]}, [(1, 4, 3, 3, 5)],
    ),
    ("FullyConnected", [(2, 3, 4), (7, 4), (7,)], {"keep_dims": True}, [(2, 3, 7)]),
    ("FullyConnected", [(2, 3, 4), (7, 12)], {}, [(2, 7)]),
    ("MatMul", [(5, 1, 2, 3), (4, 3, 6), (6,)], {}, [(5, 4, 2, 6)]),
    ("MatMul", [(3, 2), (6, 3)], {"transpose_in0": True, "transpose_in1": True}, [(2, 6)]),
    ("MatMulInteger", [(U8, (2, 3)), (U8, (3, 4)), (U8, ()), (U8, (4,))], {}, [(2, 4)]),
    ("PoolMax2d", [(1, 5, 6, 3)], POOL, [(1, 2, 3, 3)]),
    ("PoolMax2d", [(1, 5, 6, 3)], POOL | {"rounding_mode": 1}, [(1, 3, 3, 3)]),
    ("PoolAvg2d", [(1, 7, 7, 3)], {"filter_size": [7, 7], "stride": [1, 1], "pad_amount": NO_PADS}, [(1, 1, 1, 3)]),
    # The window that would start beyond the input is dropped.
    (
        "PoolAvg2d", [(1, 4, 4, 1)],
        {"filter_size": [2, 2], "stride": [3, 3], "pad_amount": [[1, 1], [0, 0]], "rounding_mode": 1}, [(1, 2, 2, 1)],
    ),
    ("PoolMax3d", [(1, 4, 4, 4, 2)], POOL_3D, [(1, 2, 2, 2, 2)]),
    ("PoolAvg3d", [(1, 4, 4, 4, 2)], POOL_3D | {"stride": [1] * 3}, [(1, 3, 3, 3, 2)]),
    ("L2Pool2d", [(1, 4, 4, 2)], POOL, [(1, 2, 2, 2)]),
    ("ElementWiseAdd", [(4, 1, 3), (5, 1)], {}, [(4, 5, 3)]),
    ("ElementWiseAdd", [(), (0, 3)], {}, [(0, 3)]),
    ("ElementWiseSelect", [(BOOL, (4, 1)), (3,), ()], {}, [(4, 3)]),
    ("Prelu", [(1, 4, 4, 3), (3,)], {}, [(1, 4, 4, 3)]),
    ("Prelu", [(1, 4, 4, 3), (5,)], {}, [(1, 4, 4, 3)]),
    ("ElementWiseNeuron", [(2, 3)], {"operation": 5, "min_value": 0, "max_value": 1}, [(2, 3)]),
    ("ExpandDims", [(2, 3)], {"axis": 2}, [(2, 3, 1)]),
    ("Transpose", [(2, 3, 4)], {"perm": [2, 0, 1]}, [(4, 2, 3)]),
    ("Concat", [(2, 3), (2, 0), (2, 4)], {}, [(2, 7)]),
    ("Pack", [(2, 3), (2, 3)], {"axis": 2}, [(2, 3, 2)]),
    ("UnPack", [(2, 3)], {"axis": 0}, [(3,), (3,)]),
    ("Split", [(6, 2)], {"axis": 0, "split_index": [1, 1, 4]}, [(1, 2), (0, 2), (3, 2), (2, 2)]),
    ("StridedSlice", [(5, 6)], {"ranges": [[4, -1, -2], [1, 6, 2]]}, [(3, 3)]),
    ("StridedSlice", [(5, 6)], {"ranges": [[2, 3, 1], [3, 3, 1]], "shrink_axes": 1}, [(0,)]),
    ("StridedSlice", [(5, 6)], {"ranges": [[-1, 0, 0], [-4, -1, 1]], "shrink_axes": 1}, [(3,)]),
    ("Pad", [(2, 3)], {"scheme": 2, "pad_amount": [[1, 0], [2, 2]]}, [(3, 7)]),
    ("Tile", [(2, 3)], {"multiples": [2, 0]}, [(4, 0)]),
    ("Gather", [(5, 6, 7), (I32, (2, 3))], {"axis": -2}, [(5, 2, 3, 7)]),
    ("Gather", [(5, 6), (I32, ())], {"axis": 0}, [(6,)]),
    ("GatherElements", [(5, 6), (I32, (2, 6))], {}, [(2, 6)]),
    ("GatherNd", [(2, 5, 6, 7), (I32, (2, 3, 2))], {"batch_dims": 1}, [(2, 3, 7)]),
    ("ScatterElements", [(5, 6), (I32, (2, 3)), (2, 3)], {"axis": 1}, [(5, 6)]),
    ("ScatterNd", [(5, 6), (I32, (4, 1)), (4, 6)], {}, [(5, 6)]),
    ("DepthToSpace", [(1, 2, 3, 8)], {"block_size": [2, 2]}, [(1, 4, 6, 2)]),
    ("SpaceToDepth", [(1, 4, 6, 2)], {"block_size": [2, 3]}, [(1, 2, 2, 12)]),
    ("SpaceToBatch", [(1, 3, 4, 2)], {"block_size": [2, 2], "pad_amount": [[0, 1], [0, 0]]}, [(4, 2, 2, 2)]),
    ("BatchToSpace", [(4, 2, 2, 2)], {"block_size": [2, 2], "crops": [[0, 1], [0, 0]]}, [(1, 3, 4, 2)]),
    ("ChannelShuffle", [(1, 2, 2, 6)], {"num_groups": 3}, [(1, 2, 2, 6)]),
    ("OneHot", [(I32, (2, 3))], {"depth": 5}, [(2, 3, 5)]),
    ("OneHot", [(I32, (2, 3))], {"depth": 5, "axis": 0}, [(5, 2, 3)]),
    ("Shape", [(2, 3, 4)], {"start": 1}, [(2,)]),
    ("Reverse", [(2, 3)], {"axes": [1]}, [(2, 3)]),
    ("ReverseSequence", [(4, 3, 2), (I32, (3,))], {"batch_axis": 1, "time_axis": 0}, [(4, 3, 2)]),
    ("CropAndResize", [(2, 8, 8, 3), (5, 4), (I32, (5,))], {"resize_dims": [4, 6]}, [(5, 4, 6, 3)]),
    ("GridSample", [(2, 8, 8, 3), (2, 4, 5, 2)], {}, [(2, 4, 5, 3)]),
    ("GridSample", [(2, 3, 8, 8, 3), (2, 4, 5, 6, 3)], {}, [(2, 4, 5, 6, 3)]),
    ("Correlation1D", [(1, 2, 8, 3), (1, 2, 8, 3)], {"displacement": 2, "shift": 0}, [(1, 2, 8, 5)]),
    ("ReduceMean", [(2, 3, 4)], {"axes": [2, 0]}, [(3,)]),
    ("ReduceSum", [(2, 3, 4)], {"axes": [1], "keep_dims": True}, [(2, 1, 4)]),
    ("Argmax", [(2, 3, 4)], {"axis": 1}, [(2, 4)]),
    ("TopK", [(2, 9)], {"k": 3}, [(2, 3), (2, 3)]),
    ("CumulativeSum", [(2, 9)], {"axis": 1}, [(2, 9)]),
    ("Batchnorm", [(1, 4, 4, 3), (3,), (3,)], {}, [(1, 4, 4, 3)]),
    ("LayerNorm", [(2, 5, 8), (8,), (8,)], {"axes": [2]}, [(2, 5, 8)]),
    ("RmsNorm", [(2, 5, 8), (5, 8)], {"axes": [1, 2]}, [(2, 5, 8)]),
    ("InstanceNorm", [(1, 4, 4, 3), (3,)], {}, [(1, 4, 4, 3)]),
    ("GroupNorm", [(1, 4, 4, 6), (6,), (6,)], {"epsilon": 1e-5, "group": 3}, [(1, 4, 4, 6)]),
    ("L2Norm", [(2, 3)], {"axes": [1]}, [(2, 3)]),
    ("Lrn", [(1, 4, 4, 3)], {"radius": 2}, [(1, 4, 4, 3)]),
    ("Softmax", [(2, 3)], {}, [(2, 3)]),
    ("LogSoftmax", [(2, 3)], {"axis": 0}, [(2, 3)]),
    ("Lstm", LSTM, {}, [(5, 2, 4), (2, 4), (2, 4)]),
    ("Lstm", [(2, 3), *LSTM[1:]], {}, [(2, 4), (2, 4), (2, 4)]),
    ("Lstm", WHOLE_LSTM, {}, [(5, 2, 6), (2, 4), (2, 6)]),
    ("Gru", [(5, 2, 3), *GATES, *[(4,)] * 6, (1, 2, 4)], {"linear_before_reset": 1}, [(5, 2, 4), (1, 2, 4)]),
    (
        "DetectionPostProcess", [(1, 6, 4), (1, 6, 3), (6, 4)], DETECTIONS | {"use_regular_nms": True},
        [(1, 8, 4), (1, 8), (1, 8), (1,)],
    ),
    ("ElementWiseMux", [(I32, (4, 1)), (3,), (2, 1, 3), ()], {}, [(2, 4, 3)]),
    ("Logit", [(2, 3), (F32, (1,))], {}, [(2, 3)]),
    (
        "ExtractPatches", [(2, 5, 6, 3)], {"size": [2, 3], "stride": [2, 1], "rate": [1, 2], "padding": 0},
        [(2, 2, 2, 18)],
    ),
    ("ExtractPatches", [(1, 5, 6, 2)], {"size": [3, 3], "stride": [2, 2], "padding": 1}, [(1, 3, 3, 18)]),
    ("ExtractGlimpse", [(2, 5, 6, 3), (F32, (2, 2))], {"size": [4, 3], "noise": 2}, [(2, 4, 3, 3)]),
    ("Stft", [(2, 40, 1), (16,)], {"frame_step": 8}, [(2, 4, 9, 2)]),
    ("Stft", [(1, 20, 2)], {"frame_step": 5, "frame_length": 9, "onesided": False}, [(1, 3, 9, 2)]),
    ("HadamardTransform", [(2, 3, 256)], {"scale": 0.5}, [(2, 3, 256)]),
    ("Buffer", [(1, 2, 3), (BOOL, ())], {"buffer_size": 6, "buffer_dim": 1, "stride": 2}, [(1, 6, 3)]),
    ("Buffer", [(1, 2, 3)], {"buffer_size": 4, "buffer_dim": 1, "mode": 2}, [(1, 4, 3)]),
    ("RotaryEmbedding", [(2, 3, 4, 8), (2, 4, 4), (2, 4, 4)], {}, [(2, 3, 4, 8)]),
    (
        "RotaryEmbedding", [(2, 3, 4, 8), (9, 3), (9, 3), (I32, (2, 4))],
        {"interleaved": True, "rotary_embedding_dim": 6}, [(2, 3, 4, 8)],
    ),
    (
        "GroupQueryAttention", [(2, 3, 16), (2, 3, 8), (2, 3, 8)], {"num_heads": 4, "kv_num_heads": 2},
        [(2, 3, 16), (2, 2, 3, 4), (2, 2, 3, 4)],
    ),
    (
        "GroupQueryAttention",
        [(1, 2, 32), None, None, (1, 2, 6, 4), (1, 2, 6, 4), (I32, (1,)), (I32, (1,)), (9, 2), (9, 2)],
        {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "scale": 0.5}, [(1, 2, 16), (1, 2, 6, 4), (1, 2, 6, 4)],
    ),
    ("SparseToDense", [(3, 4)], {}, [(3, 4)]),
]

IMAGE = (1, 4, 4, 6)
BOXES = {"iou_threshold": 0.5, "score_threshold": 0.1}
DECLARED: list[tuple[str, list, dict, list]] = [
    ("Reshape", [(2, 3)], {}, [(3, 2)]),
    ("Squeeze", [(2, 1, 3)], {}, [(2, 3)]),
    ("Tile", [(2, 3)], {"multiples": [2, 1]}, [(4, 3)]),
    ("Resize", [IMAGE], {"interpolation_mode": 0}, [(1, 8, 2, 6)]),
    ("Resize", [IMAGE], {"interpolation_mode": 1}, [(1, 8, 2, 6)]),
    ("Resize", [IMAGE], {"interpolation_mode": 2}, [(1, 8, 2, 6)]),
    ("ResizeBilinear", [IMAGE], {}, [(1, 8, 8, 6)]),
    ("ResizeNearestNeighbor", [IMAGE], {}, [(1, 8, 8, 6)]),
    ("ReduceMax", [(2, 3, 4)], {"axes": [1]}, [(2, 4)]),
    ("ReduceMin", [(2, 3, 4)], {"axes": [0, 2]}, [(3,)]),
    ("ReduceProd", [(2, 3, 4)], {"axes": [1]}, [(2, 4)]),
    ("Argmin", [(2, 3, 4)], {"axis": 2}, [(2, 3)]),
    ("ConstantOfShape", [(I32, (2,))], {"value": 2}, [(3, 5)]),
    ("Pad", [(2, 3)], {"scheme": 0, "pad_amount": [[1, 0], [2, 2]], "pad_constant_value": 0}, [(3, 7)]),
    ("ScatterElements", [(5, 6), (I32, (2, 3)), (2, 3)], {"axis": 1, "reduction": 1}, [(5, 6)]),
    ("ScatterNd", [(5, 6), (I32, (4, 1)), (4, 6)], {"reduction": 3}, [(5, 6)]),
    ("LayerNorm", [(2, 5, 8), (2, 8), (2, 8)], {"axes": [0, 2]}, [(2, 5, 8)]),
    ("LayerNorm", [(2, 5, 8), (5,)], {"axes": [1]}, [(2, 5, 8)]),
    ("RmsNorm", [(2, 5, 8)], {"axes": [1]}, [(2, 5, 8)]),
    ("Lrn", [IMAGE], {"radius": 1, "region": 1}, [IMAGE]),
    ("NonZero", [(2, 3)], {}, [(6, 2)]),
    ("NonMaxSuppression", [(1, 6, 4), (1, 2, 6)], {"iou_threshold": 0.5}, [(4, 3)]),
    ("Nv12ToRgb", [(U8, (1, 24))], {"output_order": 0}, [(1, 4, 4, 3)]),
    ("Nv21ToRgb", [(U8, (1, 24))], {"output_order": 0}, [(1, 4, 4, 3)]),
    ("MatMul", [(2, 3), (3, 4)], {}, [(2, 4)]),
    ("Conv2d", [(1, 5, 5, 3), (3, 3, 3, 4), (4,)], CONV, [(1, 3, 3, 4)]),
    ("RoiAlign", [(2, 6, 5, 3), (F32, (4, 4)), (I32, (4,))], {"img_size_ratio": [0.5, 0.25]}, [(4, 2, 3, 3)]),
    (
        "RoiAlign", [(2, 6, 5, 3), (F32, (4, 4)), (I32, (4,))],
        {"img_size_ratio": [1.0, 1.0], "num_samples_y": 2, "num_samples_x": 3, "aligned": True, "largest_sample": True},
        [(4, 2, 3, 3)],
    ),
    ("RandomUniformLike", [(I32, (2,)), (F32, (1,))], {"low": -1.0}, [(3, 5)]),
    ("RandomNormalLike", [(I32, (2,))], {"scale": 2.0}, [(3, 5)]),
    ("SelectBoxes", [(2, 6, 4), (2, 6, 3)], BOXES, [(2, 4), (2, 4), (2, 4), (2,)]),
    ("MultiClassNms", [(2, 6, 4), (2, 6, 3), (2, 6, 5)], BOXES, [(2, 4, 4), (2, 4), (2, 4), (2,), (2, 4, 5)]),
    (
        "DetectionOutput", [(2, 6, 3), (2, 6, 4), (6, 4)],
        {"delta_scaling_factors": [10.0, 10.0, 5.0, 5.0], "confidence_threshold": 0.1, "iou_threshold": 0.5},
        [(2, 4), (2, 4, 4), (2, 4), (2,)],
    ),
    ("CreateSparse", [(I32, (4, 2)), (4, 5)], {}, [(3, 4, 5)]),
    ("GetSparseIndices", [(3, 4, 5)], {}, [(7, 2)]),
    ("GetSparseValues", [(3, 4, 5)], {"num_specified_elements": 7}, [(7, 5)]),
]
"""Further calls, some with shapes that only a declaration tells or with parameters that change what is computed."""
