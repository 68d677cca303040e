"""Generate tokens with a decoder of `make_decoder.py`, whose tensors and cache are in one shared buffer.

    python run_shared.py FOLDER 'w10 w11 w12'

One JSON object is printed: the tokens, and what the backend copied and this process allocated for all tokens but the
first, which the prompt leads to. `--update shift-pointer` moves the cache's place instead of its columns.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from cache import SMART_MASK, UPDATES, Runner
from make_decoder import BOS

from isthmus import memory, qnn


def main() -> None:
    """Read the command line, generate tokens and print them."""
    parser = argparse.ArgumentParser(description="Generate tokens in one shared buffer.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("prompt", help="words of the decoder's vocabulary, w3 to w95")
    parser.add_argument("--count", type=int, default=24, help="how many tokens to generate")
    parser.add_argument("--update", choices=UPDATES, default=SMART_MASK, help="how new columns come into the cache")
    parser.add_argument("--window", type=int, default=0, help="what the decoder was made with")
    given = parser.parse_args()
    vocabulary = json.loads((given.folder / "tokenizer.json").read_text())["model"]["vocab"]
    prompt = [BOS, *(vocabulary[word] for word in given.prompt.split())]
    with qnn.Backend("libQnnHtp.so") as backend:
        context = backend.create_context_from_binary(given.folder / "decoder.bin")
        runner = Runner(context, given.update, given.window)
        tokens = [runner.read(prompt)]
        runner.prepare(given.count)
        with memory.statistics() as allocated:
            while len(tokens) < given.count:
                tokens.append(runner.step(tokens[-1:]))
        stats = [graph.stats for graph in context.graphs.values()]
        told = {
            "prompt": prompt,
            "answer": tokens,
            "executions": {name: graph.stats.executions for name, graph in context.graphs.items()},
            "copied_bytes": sum(each.copied_bytes for each in stats),
            "allocated_bytes": allocated.total_bytes,
            "buffer_bytes": runner.buffer.memory.nbytes,
        }
        context.free()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
