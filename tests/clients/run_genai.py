"""Generate tokens with onnxruntime-genai: a program for `test_genai.py`.

    python run_genai.py FOLDER COUNT TOKEN...

prints one JSON object: the tokens, and how often each graph on our library was executed.
"""

from __future__ import annotations

import json
import sys

import onnxruntime_genai
import onnxruntime_qnn

from isthmus import capi


def main(folder: str, count: int, prompt: list[int]) -> None:
    """Generate tokens after a prompt."""
    onnxruntime_genai.register_execution_provider_library("QNNExecutionProvider", onnxruntime_qnn.get_library_path())
    model = onnxruntime_genai.Model(folder)
    params = onnxruntime_genai.GeneratorParams(model)
    params.set_search_options(max_length=64, do_sample=False)
    generator = onnxruntime_genai.Generator(model, params)
    generator.append_tokens(prompt)
    tokens: list[int] = []
    while len(tokens) < count and not generator.is_done():
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
    executions = [graph.stats.executions for graph in capi.graphs()]
    print(json.dumps({"tokens": tokens, "executions": executions}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [int(token) for token in sys.argv[3:]])
