"""Kinds of convolutional networks: classifiers, segmentation, super-resolution, generators, volumes."""

from __future__ import annotations

import numpy as np
from network_builder import INT64, Builder, kind


@kind("AlexNet", opset=11)
def alexnet(b: Builder) -> str:
    x = b("Relu", b.conv(b.input("x", (1, 3, 33, 33)), 3, 8, size=5, stride=2))
    x = b.pool(b("LRN", x, size=5, alpha=1e-4, beta=0.75, bias=2.0), size=3)
    x = b.pool(b("Relu", b.conv(x, 8, 12, group=2)), size=3)
    x = b("Relu", b.linear(b.flat(x), 12 * 9, 16, gemm=True))
    return b.linear(b("Dropout", x), 16, 5, gemm=True)


@kind("VGG", opset=9, constant_nodes=True)
@kind("VGG, initializers as inputs", opset=8, inputs_too=True)
def vgg(b: Builder) -> str:
    x = b.input("x", (2, 3, 16, 16))
    for ins, outs in ((3, 6), (6, 10)):
        x = b.pool(b("Relu", b.conv(b("Relu", b.conv(x, ins, outs)), outs, outs)))
    x = b("Relu", b.linear(b.flat(x), 160, 20, gemm=True))
    return str(b("Softmax", b.linear(x, 20, 5, gemm=True), axis=1))


@kind("ResNet of basic blocks", opset=11)
@kind("ResNet of basic blocks, folded normalization", opset=13, bn=False)
@kind("ResNet of basic blocks, any batch", opset=11, batches=True, constant_nodes=True)
@kind("ResNet in float16", opset=13, half=True)
@kind("SE-ResNet", opset=12, se=True)
@kind("ResNet-D", opset=13, average=True)
@kind("ResNet with dilated stages", opset=14, dilation=2)
@kind("Wide ResNet", opset=16, width=3)
def resnet(
    b: Builder, bn: bool = True, batches: bool = False, se: bool = False, average: bool = False, dilation: int = 1,
    width: int = 1,
) -> str:  # fmt: skip
    x = b.input("x", (2 if batches else 1, 3, 32, 32), smaller=[(1, 3, 32, 32)] if batches else [])
    x = b.pool(b.block(x, 3, 8, size=7, stride=2, bn=bn), size=3, pads=[1, 1, 1, 1])
    ins = 8
    for outs, stride in ((8 * width, 1), (16 * width, 2)):
        y = b.block(x, ins, outs, stride=1 if dilation > 1 else stride, bn=bn)
        y = b.block(y, outs, outs, act="none", bn=bn, dilation=dilation)
        y = b.squeeze_excite(y, outs) if se else y
        if ins != outs:
            if average:
                x = b.pool(x, "AveragePool", ceil_mode=1, count_include_pad=0)
            stride = 1 if average or dilation > 1 else stride
            x = b.block(x, ins, outs, size=1, stride=stride, act="none", bn=bn)
        x, ins = b("Relu", b("Add", y, x)), outs
    return b.head(x, ins, shapes=batches)


@kind("ResNet of bottlenecks", opset=13)
@kind("ResNeXt", opset=14, group=4)
@kind("ResNet before activation", opset=12, before=True)
@kind("Res2Net", opset=13, scales=True)
@kind("RegNet", opset=17, group=2, se=True)
def bottleneck(b: Builder, group: int = 1, before: bool = False, scales: bool = False, se: bool = False) -> str:
    x = b.block(b.input("x", (1, 3, 16, 16)), 3, 16, stride=2)
    y = b("Relu", b.bn(x, 16)) if before else x
    y = b.block(y, 16, 8, size=1)
    if scales:
        parts = b.split(y, [2] * 4, 1)
        done = [parts[0]]
        for part in parts[1:]:
            done.append(b.block(b("Add", part, done[-1]) if len(done) > 1 else part, 2, 2))
        y = b("Concat", *done, axis=1)
    else:
        y = b.block(y, 8, 8, group=group)
    y = b.squeeze_excite(y, 8) if se else y
    y = b("Add", b.block(y, 8, 16, size=1, act="none"), x)
    return b.head(y if before else b("Relu", y), 16)


@kind("SqueezeNet", opset=11)
def squeezenet(b: Builder) -> str:
    x = b.pool(b("Relu", b.conv(b.input("x", (1, 3, 31, 31)), 3, 8, stride=2, pads=[0] * 4)), size=3, ceil_mode=1)
    small = b("Relu", b.conv(x, 8, 4, size=1))
    x = b("Concat", *(b("Relu", b.conv(small, 4, 8, size=size)) for size in (1, 3)), axis=1)
    x = b("Relu", b.conv(x, 16, 5, size=1))
    return b.flat(b("GlobalAveragePool", x))


@kind("GoogLeNet", opset=11)
def googlenet(b: Builder) -> str:
    x = b.pool(b.block(b.input("x", (1, 3, 30, 30)), 3, 8, stride=2), size=3, ceil_mode=1)
    arms = [b.block(x, 8, 4, size=1), b.block(b.block(x, 8, 4, size=1), 4, 6), b.block(b.block(x, 8, 2, size=1), 2, 4),
            b.block(b.pool(x, size=3, stride=1, pads=[1] * 4, ceil_mode=1), 8, 4, size=1)]  # fmt: skip
    return b.head(b("Concat", *arms, axis=1), 18)


@kind("Inception v3", opset=12)
def inception(b: Builder) -> str:
    x = b.block(b.input("x", (1, 3, 17, 17)), 3, 8)
    long = b.block(b.block(x, 8, 6, size=(1, 7)), 6, 8, size=(7, 1))
    pooled = b.pool(x, "AveragePool", size=3, stride=1, pads=[1] * 4, count_include_pad=1)
    x = b("Concat", b.block(x, 8, 4, size=1), long, b.block(pooled, 8, 4, size=1), axis=1)
    x = b("Concat", b.pool(x, size=3), b.block(x, 16, 8, stride=2, pads=[0] * 4), axis=1)
    return b.head(x, 24)


@kind("Xception", opset=13)
def xception(b: Builder) -> str:
    x = b.block(b.input("x", (1, 3, 20, 20)), 3, 8, stride=2)
    y = x
    for outs, ins in ((12, 8), (12, 12)):
        y = b.bn(b.conv(b.conv(b("Relu", y), ins, ins, group=ins, bias=False), ins, outs, size=1, bias=False), outs)
    y = b.pool(y, size=3, pads=[1] * 4)
    return b.head(b("Add", y, b.block(x, 8, 12, size=1, stride=2, act="none")), 12)


@kind("DenseNet", opset=11)
def densenet(b: Builder) -> str:
    x, channels = b.conv(b.input("x", (1, 3, 16, 16)), 3, 8, stride=2, bias=False), 8
    for _ in range(3):
        y = b.conv(b("Relu", b.bn(x, channels)), channels, 8, size=1, bias=False)
        y = b.conv(b("Relu", b.bn(y, 8)), 8, 4, bias=False)
        x, channels = b("Concat", x, y, axis=1), channels + 4
    x = b.conv(b("Relu", b.bn(x, channels)), channels, 10, size=1, bias=False)
    return b.head(b.pool(x, "AveragePool"), 10)


@kind("ShuffleNet v1", opset=11)
def shufflenet(b: Builder) -> str:
    x = b.block(b.input("x", (1, 3, 16, 16)), 3, 12, stride=2)
    y = b.shuffle(b.block(x, 12, 12, size=1, group=3), 12, 3, 8)
    y = b.block(b.block(y, 12, 12, group=12, act="none"), 12, 12, size=1, group=3, act="none")
    return b.head(b("Relu", b("Add", x, y)), 12)


@kind("ShuffleNet v2", opset=13)
@kind("ShuffleNet v2, chunks by shape arithmetic", opset=11, constant_nodes=True, arithmetic=True)
def shufflenet2(b: Builder, arithmetic: bool = False) -> str:
    x = b.block(b.input("x", (1, 3, 16, 16)), 3, 12, stride=2)
    if arithmetic:
        # torch.chunk of a size that is asked for.
        half = b("Div", b("Add", b.size(x, 1), b.constant(1)), b.constant(2))
        end = b.unsqueeze(b("Mul", half, b.constant(1)), 0)
        left = b("Slice", x, [0], end, [1])
        right = b("Slice", x, end, b.unsqueeze(b("Mul", half, b.constant(2)), 0), [1])
    else:
        left, right = b.split(x, [6, 6], 1)
    right = b.block(b.block(b.block(right, 6, 6, size=1), 6, 6, group=6, act="none"), 6, 6, size=1)
    return b.head(b.shuffle(b("Concat", left, right, axis=1), 12, 2, 8), 12)


@kind("MobileNet v1", opset=10, act="relu6")
@kind("MobileNet v1 of TensorFlow", opset=13, tf=True)
def mobilenet(b: Builder, act: str = "relu6", tf: bool = False) -> str:
    if tf:
        # tf2onnx: an input of channels last, transposed once, auto_pad kept as asymmetric pads.
        x = b.transpose(b.input("x", (1, 24, 24, 3)), 0, 3, 1, 2)
        x = b.block(x, 3, 8, stride=2, act=act, pads=[0, 0, 1, 1])
    else:
        x = b.block(b.input("x", (1, 3, 24, 24)), 3, 8, stride=2, act=act)
    for ins, outs, stride in ((8, 16, 1), (16, 16, 2)):
        pads = [0, 0, 1, 1] if tf and stride == 2 else None
        x = b.block(b.block(x, ins, ins, group=ins, stride=stride, act=act, pads=pads), ins, outs, size=1, act=act)
    if tf:
        x = b.squeeze(b.mean(b.transpose(x, 0, 2, 3, 1), 1, 2), 1, 2)
        return str(b("Softmax", b.linear(x, 16, 5), axis=-1))
    return b.head(x, 16)


@kind("MobileNet v2", opset=12, act="relu6")
@kind("MNASNet", opset=11, act="Relu", size=5)
@kind("MobileNet v3", opset=14, act="hardswish", se="hard")
@kind("MobileNet v3, HardSwish by Clip", opset=11, act="hardswish by clip", se="hard")
@kind("MobileNet v3, HardSwish", opset=16, act="HardSwish", se="hard")
@kind("EfficientNet", opset=13, act="silu", se="Sigmoid", size=5)
@kind("EfficientNet v2", opset=17, act="silu", se="Sigmoid", fused=True)
@kind("MobileNet v3 in float16", opset=14, act="hardswish", se="hard", half=True)
def inverted(b: Builder, act: str, se: str = "", size: int = 3, fused: bool = False) -> str:
    x = b.block(b.input("x", (1, 3, 20, 20)), 3, 8, stride=2, act=act)
    for stride in (1, 2):
        if fused:
            y = b.block(x, 8, 24, stride=stride, act=act)
        else:
            y = b.block(b.block(x, 8, 24, size=1, act=act), 24, 24, size=size, group=24, stride=stride, act=act)
        y = b.squeeze_excite(y, 24, se) if se else y
        y = b.block(y, 24, 8, size=1, act="none")
        x = b("Add", x, y) if stride == 1 else y
    return b.head(b.block(x, 8, 16, size=1, act=act), 16)


@kind("GhostNet", opset=13)
def ghostnet(b: Builder) -> str:
    x = b.block(b.input("x", (1, 3, 16, 16)), 3, 8, stride=2)
    first = b.block(x, 8, 8, size=1)
    x = b.slice(b("Concat", first, b.block(first, 8, 8, group=8), axis=1), 0, 14, 1)
    return b.head(b.squeeze_excite(x, 14, "hard"), 14)


@kind("ConvNeXt", opset=16)
@kind("ConvNeXt, fused normalization", opset=20, fused=True)
def convnext(b: Builder, fused: bool = False) -> str:
    x = b.conv(b.input("x", (1, 3, 16, 16)), 3, 8, size=4, stride=4, pads=[0] * 4)
    y = b.transpose(b.conv(x, 8, 8, size=7, group=8), 0, 2, 3, 1)
    y = b.linear(b.layer_norm(y, 8, fused), 8, 32)
    y = b("Gelu", y) if fused else b.activation(y, "gelu")
    y = b("Mul", b.linear(y, 32, 8), b.weight(8))
    x = b("Add", x, b.transpose(y, 0, 3, 1, 2))
    return b.linear(b.layer_norm(b.mean(x, -2, -1, keep=0), 8, fused), 8, 5, gemm=True)


@kind("RepVGG", opset=13)
def repvgg(b: Builder) -> str:
    x = b.block(b.input("x", (1, 3, 16, 16)), 3, 8, stride=2)
    x = b("Relu", b("Add", b("Add", b.block(x, 8, 8, act="none"), b.block(x, 8, 8, size=1, act="none")), b.bn(x, 8)))
    return b.head(x, 8)


@kind("NFNet, standardized weights", opset=13)
def nfnet(b: Builder) -> str:
    weight = b.weight(8, 3, 3, 3)
    centred = b("Sub", weight, b.mean(weight, 1, 2, 3))
    scale = b("Sqrt", b("Add", b.mean(b("Mul", centred, centred), 1, 2, 3), 1e-5))
    x = b("Conv", b.input("x", (1, 3, 12, 12)), b("Div", centred, scale), pads=[1] * 4, kernel_shape=[3, 3])
    return b.head(b("Mul", b.activation(x, "gelu"), 1.7), 8)


@kind("HRNet", opset=12)
def hrnet(b: Builder) -> list[str]:
    fine = b.block(b.input("x", (1, 3, 24, 24)), 3, 8, stride=2)
    coarse = b.block(fine, 8, 16, stride=2)
    up = b.resize(b.block(coarse, 16, 8, size=1, act="none"), 2.0)
    down = b.block(fine, 8, 16, stride=2, act="none")
    return [b.conv(b("Relu", b("Add", fine, up)), 8, 4, size=1), str(b("Relu", b("Add", coarse, down)))]


@kind("Mobile attention, CBAM", opset=18)
def cbam(b: Builder) -> str:
    x = b.block(b.input("x", (1, 3, 16, 16)), 3, 8, stride=2)
    both = b("Concat", b.mean(x, 1), b.max(x, 1), axis=1)
    x = b("Mul", x, b("Sigmoid", b.conv(both, 2, 1, size=7)))
    return b.head(b("Mul", x, b("Sigmoid", b("Add", b("GlobalMaxPool", x), b("GlobalAveragePool", x)))), 8)


# --- segmentation ---------------------------------------------------------------------------------------------------


@kind("UNet", opset=11)
@kind("UNet, bilinear", opset=13, up="linear")
@kind("UNet of any size", opset=13, up="linear", sizes=True)
@kind("UNet of volumes", opset=13, rank=3)
@kind("UNet in float16", opset=13, half=True)
def unet(b: Builder, up: str = "conv", sizes: bool = False, rank: int = 2) -> str:
    size = (1, 2, *[16 if rank == 2 else 8] * rank)
    x = b.input("x", size, smaller=[(1, 2, 12, 16), (1, 2, 8, 4)] if sizes else [])
    skips, ins = [], 2
    for outs in (4, 8):
        x = b.block(b.block(x, ins, outs, rank=rank), outs, outs, rank=rank)
        skips.append(x)
        x, ins = b.pool(x, rank=rank), outs
    x = b.block(x, 8, 16, rank=rank)
    ins = 16
    for outs in (8, 4):
        skip = skips.pop()
        if up == "conv":
            x = b.up_conv(x, ins, outs, rank=rank)
        else:
            x = b.resize_like(x, skip, align=True) if sizes else b.resize(x, 2.0, "linear")
            x = b.conv(x, ins, outs, size=1)
        x, ins = b.block(b("Concat", skip, x, axis=1), 2 * outs, outs, rank=rank), outs
    return str(b("Sigmoid", b.conv(x, 4, 1, size=1, rank=rank)))


@kind("SegNet, unpooling", opset=11)
def segnet(b: Builder) -> str:
    x = b.block(b.input("x", (1, 3, 12, 12)), 3, 6)
    pooled, places = b("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], out=2)
    x = b("MaxUnpool", b.block(pooled, 6, 6), places, kernel_shape=[2, 2], strides=[2, 2])
    return b.conv(x, 6, 4)


@kind("FCN of any size", opset=11, constant_nodes=True)
@kind("FCN, largest class", opset=13, classes=True)
def fcn(b: Builder, classes: bool = False) -> object:
    x = b.input("x", (1, 3, 24, 32), smaller=[(1, 3, 16, 16), (1, 3, 20, 24)])
    y = b.conv(b.block(b.block(x, 3, 8, stride=2), 8, 8, stride=2), 8, 4, size=1)
    y = b.resize_like(y, x)
    return [(b("ArgMax", y, axis=1, keepdims=0), INT64)] if classes else y


@kind("DeepLab", opset=13)
def deeplab(b: Builder) -> str:
    x = b.input("x", (1, 3, 24, 24))
    y = b.block(b.block(x, 3, 8, stride=2), 8, 8)
    arms = [b.block(y, 8, 4, size=1), *(b.block(y, 8, 4, dilation=d) for d in (2, 4))]
    arms.append(b.resize_like(b.block(b("GlobalAveragePool", y), 8, 4, size=1), y))
    y = b.conv(b.block(b("Concat", *arms, axis=1), 16, 8, size=1), 8, 3, size=1)
    return b.resize_like(y, x)


@kind("PSPNet, adaptive pools", opset=12)
def pspnet(b: Builder) -> str:
    x = b.block(b.input("x", (1, 3, 24, 24)), 3, 8, stride=2)
    arms = [x]
    for bins in (1, 2, 3, 6):
        pooled = b.pool(x, "AveragePool", size=12 // bins, stride=12 // bins)
        arms.append(b.resize_like(b.block(pooled, 8, 2, size=1), x, align=True))
    return b.conv(b("Concat", *arms, axis=1), 16, 4)


@kind("FPN of operator set 9", opset=9)
@kind("FPN of operator set 10", opset=10)
@kind("PAN", opset=17)
def fpn(b: Builder) -> list[str]:
    low = b.block(b.input("x", (1, 3, 16, 16)), 3, 6, stride=2)
    mid = b.block(low, 6, 8, stride=2)
    top = b.block(mid, 8, 10, stride=2)
    p3 = b.conv(top, 10, 8, size=1)
    p2 = b("Add", b.conv(mid, 8, 8, size=1), b.resize(p3, 2.0))
    p1 = b("Add", b.conv(low, 6, 8, size=1), b.resize(p2, 2.0))
    return [b.conv(p, 8, 8) for p in (p1, p2, p3)]


@kind("LinkNet", opset=13)
def linknet(b: Builder) -> str:
    first = b.block(b.input("x", (1, 3, 16, 16)), 3, 8, stride=2)
    x = b.block(first, 8, 16, stride=2)
    x = b("Relu", b.bn(b.up_conv(b.block(x, 16, 4, size=1), 4, 4, size=3, pads=[1] * 4, output_padding=[1, 1]), 4))
    x = b("Add", b.block(x, 4, 8, size=1), first)
    return b.up_conv(x, 8, 2, size=4, pads=[1] * 4)


# --- pictures from pictures -----------------------------------------------------------------------------------------


@kind("ESPCN, pixel shuffle", opset=13)
@kind("ESPCN, pixel shuffle by Reshape", opset=11, spelt=True)
@kind("EDSR", opset=14, deep=True)
def espcn(b: Builder, spelt: bool = False, deep: bool = False) -> str:
    x = b.conv(b.input("x", (1, 1, 10, 10)), 1, 8, size=5)
    if deep:
        y = b.conv(b("Relu", b.conv(x, 8, 8)), 8, 8)
        x = b("Add", x, b("Mul", y, 0.1))
    x = b.conv(b("Tanh", x), 8, 9)
    if not spelt:
        return str(b("DepthToSpace", x, blocksize=3, mode="CRD"))
    x = b.transpose(b.reshape(x, b.size(x, 0), 1, 3, 3, 10, 10), 0, 1, 4, 2, 5, 3)
    return b.reshape(x, b.size(x, 0), 1, 30, 30)


@kind("SRGAN", opset=13)
def srgan(b: Builder) -> str:
    x = b("PRelu", b.conv(b.input("x", (1, 3, 8, 8)), 3, 8), b.weight(1, scale=0.2))
    y = b("PRelu", b.bn(b.conv(x, 8, 8), 8), b.weight(8, 1, 1, scale=0.2))
    x = b("Add", b.bn(b.conv(y, 8, 8), 8), x)
    x = b("DepthToSpace", b.conv(x, 8, 16), blocksize=2, mode="CRD")
    return str(b("Tanh", b.conv(x, 4, 3, size=5)))


@kind("DCGAN generator", opset=11)
def dcgan(b: Builder) -> str:
    x = b("Relu", b.bn(b.up_conv(b.input("z", (1, 16, 1, 1)), 16, 8, size=4, stride=1), 8))
    x = b("Relu", b.bn(b.up_conv(x, 8, 8, size=4, pads=[1] * 4), 8))
    return str(b("Tanh", b.up_conv(x, 8, 3, size=4, pads=[1] * 4)))


@kind("CycleGAN generator", opset=11)
def cyclegan(b: Builder) -> str:
    def norm(x: str) -> str:
        return str(b("InstanceNormalization", x, b.weight(8, positive=True), b.weight(8, scale=0.1), epsilon=1e-5))

    x = b.pad(b.input("x", (1, 3, 16, 16)), [0, 0, 3, 3, 0, 0, 3, 3], "reflect")
    x = b("Relu", norm(b.conv(x, 3, 8, size=7, pads=[0] * 4)))
    y = norm(b.conv(b.pad(x, [0, 0, 1, 1, 0, 0, 1, 1], "reflect"), 8, 8, pads=[0] * 4))
    x = b("Add", x, y)
    x = b("Relu", norm(b.up_conv(x, 8, 8, size=3, pads=[1] * 4, output_padding=[1, 1])))
    return str(b("Tanh", b.conv(x, 8, 3, size=7)))


@kind("Style transfer", opset=11)
def style(b: Builder) -> str:
    x = b.pad(b.input("x", (1, 3, 16, 16)), [0, 0, 1, 1, 0, 0, 1, 1], "edge")
    x = b("Relu", b.conv(x, 3, 8, stride=2, pads=[0] * 4))
    x = b.conv(b.resize(x, 2.0), 8, 3)
    return b.clip(b("Add", b("Mul", x, 64.0), 128.0), 0.0, 255.0)


@kind("StyleGAN, modulated weights", opset=13)
def stylegan(b: Builder) -> str:
    x, style = b.input("x", (1, 6, 8, 8)), b.input("style", (1, 10))
    gains = b.reshape(b("Add", b.linear(style, 10, 6, gemm=True), 1.0), 1, 1, 6, 1, 1)
    weight = b("Mul", b.weight(1, 8, 6, 3, 3, scale=0.2), gains)
    norm = b("Sqrt", b("Add", b.sum(b("Mul", weight, weight), 2, 3, 4), 1e-8))
    weight = b.reshape(b("Div", weight, norm), 8, 6, 3, 3)
    x = b("Conv", x, weight, pads=[1] * 4, kernel_shape=[3, 3])
    return b.activation(b("Add", x, b.weight(1, 8, 1, 1)), "leaky")


@kind("Diffusion step", opset=17)
@kind("Diffusion step, GroupNormalization", opset=21, fused=True)
def diffusion(b: Builder, fused: bool = False) -> str:
    def norm(x: str) -> str:
        gain, bias = b.weight(8, positive=True), b.weight(8, scale=0.1)
        if fused:
            return str(b("GroupNormalization", x, gain, bias, num_groups=4, epsilon=1e-5))
        # PyTorch's exporter: an InstanceNormalization of the groups.
        flat = b("InstanceNormalization", b.reshape(x, 0, 4, -1), np.ones(4, np.float32), np.zeros(4, np.float32))
        y = b("Mul", b("Reshape", flat, b("Shape", x)), b.unsqueeze(gain, 1, 2))
        return str(b("Add", y, b.unsqueeze(bias, 1, 2)))

    x, step = b.input("x", (1, 4, 8, 8)), b.input("step", (1,), below=100)
    angles = b("Mul", b.unsqueeze(b("Cast", step, to=1), 1), np.float32([[1, 0.3, 0.1, 0.03]]))
    time = b.activation(b.linear(b("Concat", b("Sin", angles), b("Cos", angles), axis=-1), 8, 8, gemm=True), "silu")
    x = b.conv(x, 4, 8)
    y = b.conv(b.activation(norm(x), "silu"), 8, 8)
    y = b("Add", y, b.unsqueeze(b.linear(time, 8, 8, gemm=True), 2, 3))
    x = b("Add", x, b.conv(b.activation(norm(y), "silu"), 8, 8))
    rows = b.transpose(b.reshape(norm(x), 1, 8, 64), 0, 2, 1)
    rows = b.transpose(b.attention(rows, 8, 2), 0, 2, 1)
    return b.conv(b("Add", x, b.reshape(rows, 1, 8, 8, 8)), 8, 4)


@kind("Optical flow, GridSample", opset=16)
@kind("Spatial transformer, GridSample of operator set 20", opset=20, affine=True)
def flow(b: Builder, affine: bool = False) -> str:
    x = b.input("x", (1, 3, 12, 12))
    if affine:
        theta = b.reshape(b("Tanh", b.linear(b.flat(b.pool(x, size=4, stride=4)), 27, 6, gemm=True)), 1, 2, 3)
        grid = b("AffineGrid", theta, [1, 3, 8, 8], align_corners=0)
        return str(b("GridSample", x, grid, mode="linear", padding_mode="border", align_corners=0))
    move = b.transpose(b("Tanh", b.conv(x, 3, 2)), 0, 2, 3, 1)
    line = np.linspace(-1, 1, 12, dtype=np.float32)
    base = np.stack(np.meshgrid(line, line), -1)[None]
    return str(b("GridSample", x, b("Add", b("Mul", move, 0.3), base), mode="bilinear", align_corners=1))


@kind("Convolutional autoencoder", opset=13)
def autoencoder(b: Builder) -> str:
    x = b("Relu", b.conv(b.input("x", (1, 1, 14, 14)), 1, 6, stride=2))
    x = b("Relu", b.linear(b.flat(x), 294, 10, gemm=True))
    x = b.reshape(b("Relu", b.linear(x, 10, 294, gemm=True)), -1, 6, 7, 7)
    return str(b("Sigmoid", b.up_conv(x, 6, 1, size=3, pads=[1] * 4, output_padding=[1, 1])))


# --- volumes and lines ----------------------------------------------------------------------------------------------


@kind("C3D", opset=11)
@kind("R(2+1)D", opset=13, parts=True)
@kind("ResNet of volumes", opset=13, residual=True)
def volumes(b: Builder, parts: bool = False, residual: bool = False) -> str:
    x = b.input("x", (1, 3, 6, 12, 12))
    if parts:
        x = b.block(b.block(x, 3, 6, size=(1, 3, 3), rank=3), 6, 8, size=(3, 1, 1), rank=3)
    else:
        x = b.block(x, 3, 8, rank=3)
    if residual:
        x = b("Relu", b("Add", x, b.block(x, 8, 8, rank=3, act="none", group=2)))
    x = b.pool(x, size=2, rank=3)
    return b.head(x, 8)


@kind("WaveNet", opset=13)
@kind("TCN, causal", opset=11, causal=True)
def wavenet(b: Builder, causal: bool = False) -> str:
    x = b.conv(b.input("x", (1, 2, 32)), 2, 8, size=1, rank=1)
    for dilation in (1, 2, 4):
        if causal:
            y = b.conv(x, 8, 8, size=3, rank=1, dilation=dilation, pads=[2 * dilation] * 2)
            y = b("Relu", b("Slice", y, [0], [-2 * dilation], [2]))
        else:
            sides = [b.conv(x, 8, 8, rank=1, dilation=dilation) for _ in range(2)]
            y = b("Mul", b("Tanh", sides[0]), b("Sigmoid", sides[1]))
        x = b("Add", x, b.conv(y, 8, 8, size=1, rank=1))
    return b.conv(b("Relu", x), 8, 4, size=1, rank=1)


@kind("Speech separation, Conv-TasNet", opset=17)
def tasnet(b: Builder) -> str:
    x = b("Relu", b.conv(b.input("x", (1, 1, 64)), 1, 8, size=8, stride=4, pads=[0, 0], rank=1))
    mean = b.mean(x, 1, 2)
    centred = b("Sub", x, mean)
    y = b("Div", centred, b("Sqrt", b("Add", b.mean(b("Mul", centred, centred), 1, 2), 1e-8)))
    y = b("PRelu", b.conv(y, 8, 8, group=8, rank=1), b.weight(1, scale=0.3))
    masks = b.reshape(b("Sigmoid", b.conv(y, 8, 16, size=1, rank=1)), 1, 2, 8, 15)
    x = b.reshape(b("Mul", b.unsqueeze(x, 1), masks), 2, 8, 15)
    return b.up_conv(x, 8, 1, size=8, stride=4, rank=1)
