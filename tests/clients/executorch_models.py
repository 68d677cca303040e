"""ExecuTorch exports models for HTP, compiles them with our libraries and executes them; results are compared.

    python tests/clients/executorch_models.py [MODEL] [PRECISION]

The models are mobilenet_v2 and a small Llama whose KV cache is made of inputs and outputs, both with random weights.
Each is exported in 8a8w, 16a8w and 16a4w. The results of ExecuTorch's quantized model in PyTorch are the reference,
with the tolerances of ExecuTorch's own tests of quantized models. QNN_SDK_ROOT and LD_LIBRARY_PATH name our libraries,
as for any client. The exit status is 1 if a result differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from executorch import exir
from executorch.backends.qualcomm.export_utils import make_quantizer
from executorch.backends.qualcomm.quantizer.quantizer import QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset, QnnExecuTorchBackendType
from executorch.backends.qualcomm.utils.utils import (
    generate_htp_compiler_spec,
    generate_qnn_executorch_compiler_spec,
    get_qnn_context_binary_alignment,
    to_edge_transform_and_lower_to_qnn,
)
from executorch.runtime import Runtime
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

Tensors = tuple[torch.Tensor, ...]
Model = Callable[..., Tensors]
CHIP = "SM8650"
ABSOLUTE, RELATIVE = 1e-1, 1.0
"""The tolerances of ExecuTorch's tests of quantized models."""
SHARE = 0.1
"""How large the largest difference may be, as a share of the largest result; ExecuTorch's tolerances accept zeros."""
PRECISIONS = {name: QuantDtype[f"use_{name}"] for name in ("8a8w", "16a8w", "16a4w")}
SIDE = 96
"""The height and width of images."""
CONTEXT, LAYERS, WORDS, WIDTH, HEADS, SHARED, DEPTH = 32, 2, 64, 64, 4, 2, 16
"""The Llama: tokens of its context, layers, vocabulary, width, heads, heads of keys and values, numbers of a head."""
MASKED = -255.0
"""What is added to the attention that a token may not pay."""
STEPS = 6
"""How many tokens are generated, or images classified."""


class Mobilenet:
    """Classifies images that differ from step to step."""

    def __init__(self) -> None:
        import torchvision

        self.module = torchvision.models.mobilenet_v2(weights=None)
        # Without statistics of its own activations, a model with random weights computes next to nothing.
        with torch.no_grad():
            for _ in range(8):
                self.module(torch.randn(4, 3, SIDE, SIDE))
            self.module.classifier[1].weight *= 10
        self.module.eval()

    def run(self, model: Model) -> Iterator[torch.Tensor]:
        """Yield the results for the images."""
        random = torch.Generator().manual_seed(1)
        for _ in range(STEPS):
            yield model(torch.randn(1, 3, SIDE, SIDE, generator=random))[0]


class Attention(torch.nn.Module):
    """Attention of the newest token to those of the cache and itself."""

    def __init__(self) -> None:
        super().__init__()
        self.query = torch.nn.Linear(WIDTH, HEADS * DEPTH, bias=False)
        self.key = torch.nn.Linear(WIDTH, SHARED * DEPTH, bias=False)
        self.value = torch.nn.Linear(WIDTH, SHARED * DEPTH, bias=False)
        self.output = torch.nn.Linear(HEADS * DEPTH, WIDTH, bias=False)

    def forward(
        self, x: torch.Tensor, turn: Tensors, mask: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> Tensors:
        query = rotated(self.query(x).view(1, 1, HEADS, DEPTH), *turn).transpose(1, 2)
        key = rotated(self.key(x).view(1, 1, SHARED, DEPTH), *turn).permute(0, 2, 3, 1)
        value = self.value(x).view(1, 1, SHARED, DEPTH).transpose(1, 2)
        seen, known = for_each_head(torch.cat([keys, key], 3)), for_each_head(torch.cat([values, value], 2))
        share = torch.softmax(query @ seen / DEPTH**0.5 + mask, -1)
        return self.output((share @ known).transpose(1, 2).reshape(1, 1, HEADS * DEPTH)), key, value


def for_each_head(x: torch.Tensor) -> torch.Tensor:
    """Return the keys or values of each head, several of which share one."""
    return torch.cat([x[:, head * SHARED // HEADS][:, None] for head in range(HEADS)], 1)


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Return heads turned by the angles of their token's place."""
    first, second = x[..., : DEPTH // 2], x[..., DEPTH // 2 :]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class Layer(torch.nn.Module):
    """Attention and a gated network, each added to what it is computed from."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(WIDTH, eps=1e-5) for _ in range(2))
        self.gate, self.up = (torch.nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, turn: Tensors, mask: torch.Tensor, *cache: torch.Tensor) -> Tensors:
        attended, key, value = self.attention(self.norms[0](x), turn, mask, *cache)
        x = x + attended
        inner = self.norms[1](x)
        return x + self.down(torch.nn.functional.silu(self.gate(inner)) * self.up(inner)), key, value


class Decoder(torch.nn.Module):
    """A Llama of one token at a time: it returns logits, and the token's keys and values of each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = torch.nn.RMSNorm(WIDTH, eps=1e-5)
        self.logits = torch.nn.Linear(WIDTH, WORDS, bias=False)
        angles = torch.outer(torch.arange(CONTEXT), 10000.0 ** -(torch.arange(0, DEPTH, 2) / DEPTH))
        self.register_buffer("cosine", torch.cos(angles))
        self.register_buffer("sine", torch.sin(angles))

    def forward(self, token: torch.Tensor, mask: torch.Tensor, place: torch.Tensor, *caches: torch.Tensor) -> Tensors:
        x, turn = self.words(token), (self.cosine[place], self.sine[place])
        keys, values = [], []
        for index, layer in enumerate(self.layers):
            x, key, value = layer(x, turn, mask, caches[index], caches[LAYERS + index])
            keys.append(key)
            values.append(value)
        return (self.logits(self.norm(x)), *keys, *values)


class Llama:
    """Generates tokens; the keys and values that each step returns are written into the cache of the next."""

    def __init__(self) -> None:
        self.module = Decoder().eval()

    def run(self, model: Model) -> Iterator[torch.Tensor]:
        """Yield the logits of each step."""
        keys = [torch.zeros(1, SHARED, DEPTH, CONTEXT - 1) for _ in range(LAYERS)]
        values = [torch.zeros(1, SHARED, CONTEXT - 1, DEPTH) for _ in range(LAYERS)]
        mask = torch.full((1, 1, 1, CONTEXT), MASKED)
        mask[..., -1] = 0  # the newest token is the last one
        for step in range(STEPS):
            token, place = (torch.tensor([[number]], dtype=torch.int32) for number in (step * 11 % WORDS, step))
            logits, *new = model(token, mask, place, *keys, *values)
            yield logits
            mask[..., step] = 0
            for layer in range(LAYERS):
                keys[layer][..., step : step + 1] = new[layer]
                values[layer][:, :, step : step + 1] = new[LAYERS + layer]


MODELS = {"mobilenet_v2": Mobilenet, "llama": Llama}


def first_inputs(client: Mobilenet | Llama) -> Tensors:
    """Return the inputs of the first step."""
    found: list[Tensors] = []

    def take(*inputs: torch.Tensor) -> Tensors:
        found.append(tuple(each.clone() for each in inputs))
        return inputs

    for _ in client.run(take):
        break
    return found[0]


def as_list(model: torch.nn.Module) -> Model:
    """Return a module as a function with a tuple of results."""

    def call(*inputs: torch.Tensor) -> Tensors:
        result = model(*inputs)
        return tuple(result) if isinstance(result, (list, tuple)) else (result,)

    return call


def quantized(client: Mobilenet | Llama, precision: QuantDtype) -> torch.nn.Module:
    """Return the model with fixed-point numbers, calibrated with the steps that are compared."""
    exported = torch.export.export(client.module, first_inputs(client), strict=True).module()
    quantizer = make_quantizer(
        quant_dtype=precision, per_channel_conv=True, per_channel_linear=True,
        backend=QnnExecuTorchBackendType.kHtpBackend, soc_model=CHIP,
    )  # fmt: skip
    prepared = prepare_pt2e(exported, quantizer)
    for _ in client.run(as_list(prepared)):
        pass
    return convert_pt2e(prepared)


def compiled(module: torch.nn.Module, inputs: Tensors, folder: Path) -> tuple[Model, int]:
    """Compile a quantized module; return the function that executes it, and the number of its partitions."""
    specs = generate_qnn_executorch_compiler_spec(
        soc_model=getattr(QcomChipset, CHIP), backend_options=generate_htp_compiler_spec(use_fp16=False)
    )
    lowered = to_edge_transform_and_lower_to_qnn(module, inputs, specs)
    config = exir.ExecutorchBackendConfig(segment_alignment=get_qnn_context_binary_alignment())
    program = lowered.to_executorch(config)
    file = folder / "model.pte"
    file.write_bytes(program.buffer)
    loaded = Runtime.get().load_program(str(file))
    method = loaded.load_method("forward")
    partitions = len(program.executorch_program.execution_plan[0].delegates)

    def call(*given: torch.Tensor) -> Tensors:
        assert loaded is not None  # a method needs its program
        return tuple(each.clone() for each in method.execute(list(given)))

    return call, partitions


def compare(name: str, precision: str) -> bool:
    """Export, compile and execute a model; print and return whether all results are within the tolerances."""
    torch.manual_seed(0)
    begun, client = time.monotonic(), MODELS[name]()
    reference = quantized(client, PRECISIONS[precision])
    with tempfile.TemporaryDirectory() as folder:
        model, partitions = compiled(reference, first_inputs(client), Path(folder))
        expected = [each.clone() for each in client.run(as_list(reference))]
        found = list(client.run(model))
    largest = max(float((one - two).abs().max()) for one, two in zip(found, expected, strict=True))
    size = max(float(each.abs().max()) for each in expected)
    # A reference of zeros would be met by anything.
    close = (
        size > 1
        and largest <= SHARE * size
        and all(
            torch.allclose(one, two, atol=ABSOLUTE, rtol=RELATIVE) for one, two in zip(found, expected, strict=True)
        )
    )
    verdict = "within the tolerances" if close else "beyond the tolerances"
    print(
        f"{name} {precision}: {verdict}; {partitions} partition(s), {len(found)} executions, largest difference "
        f"{largest:.3g} of {size:.3g}, {time.monotonic() - begun:.0f} s",
        flush=True,
    )
    return close and partitions == 1


def main() -> int:
    """Compare the models and precisions that are asked for, by default all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?", choices=[*MODELS], help="default: all")
    parser.add_argument("precision", nargs="?", choices=[*PRECISIONS], help="default: all")
    chosen = parser.parse_args()
    names = [chosen.model] if chosen.model else [*MODELS]
    precisions = [chosen.precision] if chosen.precision else [*PRECISIONS]
    done = [compare(name, precision) for name in names for precision in precisions]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
