"""Make a small Llama-like decoder with random weights, for Genie and for runners of one's own.

    python make_decoder.py FOLDER

writes into FOLDER

- `ar32_cl512.onnx`, `ar1_cl512.onnx`: the decoder for 32 tokens at once (the prompt) and for one (see `model.py`);
- `ar512_cl512.onnx`: the same for all tokens of a context at once, without a cache, to compare with;
- `decoder.bin`: all graphs in one context binary for our `libQnnHtp.so`, with their weights once;
- `tokenizer.json`: a vocabulary of made-up words, one for each token;
- `genie_config.json`: what Genie reads, with paths relative to the folder; not with `--window`, whose mask Genie leaves
  empty.

`run_genie.py` lets Genie generate tokens with it, `run_shared.py` does so without Genie. Other decoders: `--ar 128 32 1
--context 512 1024 --layers 4 --window 256 --precision float16 ...`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model import A16W8, PRECISIONS, ROPE_THETA, Decoder, Shape, name_of

from isthmus import frontends, qnn

SAMPLER = {"version": 1, "type": "basic", "seed": 1, "temp": 1.0, "top-k": 1, "top-p": 1.0, "greedy": True}
SPECIAL = ("<unk>", "<s>", "</s>")
BOS, EOS = 1, 2


def context_binary(files: Sequence[Path]) -> bytes:
    """Return a context binary for HTP with a graph for each file, and the weights of all once."""
    with qnn.Backend("libQnnHtp.so") as backend:
        context = backend.create_context({qnn.htp.WEIGHT_SHARING_ENABLED: True})
        for file in files:
            context.add_graph(frontends.load(file))
        return context.prepare_offline()


def tokenizer(shape: Shape) -> dict[str, Any]:
    """Return a tokenizer whose words are w3, w4, …"""
    words = [*SPECIAL, *(f"w{token}" for token in range(len(SPECIAL), shape.vocabulary))]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: token for token, word in enumerate(words)},
            "unk_token": SPECIAL[0],
        },
    }


def genie_config(shape: Shape, context: int, binaries: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of a dialog, which always takes the likeliest token."""
    engine = {
        "version": 1,
        "n-threads": 1,
        "backend": {
            "version": 1,
            "type": "QnnHtp",
            "QnnHtp": {
                "version": 1,
                "use-mmap": False,
                "mmap-budget": 0,
                "spill-fill-bufsize": 0,
                "poll": False,
                "cpu-mask": "0x3",
                "kv-dim": shape.head_width,
                "allow-async-init": False,
            },
        },
        "model": {
            "version": 1,
            "type": "binary",
            "binary": {"version": 1, "ctx-bins": list(binaries)},
            "positional-encoding": {"type": "rope", "rope-dim": shape.head_width // 2, "rope-theta": ROPE_THETA},
        },
    }
    return {
        "dialog": {
            "version": 1,
            "type": "basic",
            "max-num-tokens": 24,
            "context": {
                "version": 1,
                "size": context,
                "n-vocab": shape.vocabulary,
                "bos-token": BOS,
                "eos-token": EOS,
            },
            "sampler": SAMPLER,
            "tokenizer": {"version": 1, "path": "tokenizer.json"},
            "engine": engine,
        }
    }


def make(folder: Path, decoder: Decoder, tokens: Sequence[int], contexts: Sequence[int], separate: bool) -> None:
    """Write the graphs, their context binaries, the tokenizer and the configuration.

    A graph takes fewer tokens at once than its context has: Genie wants a cache in each.
    """
    decoder.write(max(contexts), max(contexts))
    files = {context: [decoder.write(count, context) for count in tokens if count < context] for context in contexts}
    if separate:
        binaries = {f"decoder_cl{context}.bin": graphs for context, graphs in files.items()}
    else:
        binaries = {"decoder.bin": [file for graphs in files.values() for file in graphs]}
    for name, graphs in binaries.items():
        (folder / name).write_bytes(context_binary(graphs))
    contents = {"tokenizer": tokenizer(decoder.shape)}
    if not decoder.shape.window:
        contents["genie_config"] = genie_config(decoder.shape, max(contexts), list(binaries))
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


def halves(tokens: Sequence[int], contexts: Sequence[int]) -> list[str]:
    """Return the graphs whose caches have inputs and outputs of the same shape.

    Genie believes that these update their cache themselves, and may then not update it.
    """
    return [name_of(count, context) for context in contexts for count in tokens if 2 * count == context]


def main() -> None:
    """Read the command line and write the files."""
    parser = argparse.ArgumentParser(description="Make a small decoder with random weights for Genie.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ar", type=int, nargs="+", default=[32, 1], help="tokens at once, one graph each")
    parser.add_argument("--context", type=int, nargs="+", default=[512], help="context lengths, graphs for each")
    parser.add_argument("--precision", choices=PRECISIONS, default=A16W8, help="types of activations and weights")
    parser.add_argument("--separate", action="store_true", help="a context binary for each context length")
    for name, value in Shape().__dict__.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    given = vars(parser.parse_args())
    if names := halves(given["ar"], given["context"]):
        parser.error(
            f"{', '.join(names)}: Genie takes a graph for half of its context's tokens at once for one that updates its"
            " cache itself; choose other numbers for --ar or --context"
        )
    shape = Shape(**{name: given[name] for name in Shape.__dataclass_fields__})
    given["folder"].mkdir(parents=True, exist_ok=True)
    decoder = Decoder(given["folder"], shape, given["precision"])
    make(given["folder"], decoder, given["ar"], given["context"], given["separate"])


if __name__ == "__main__":
    main()
