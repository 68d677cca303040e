"""Let Genie, which the package onnxruntime-qnn contains, generate tokens with a decoder of `make_decoder.py`.

    isthmus capi install libraries
    python run_genie.py --libraries libraries FOLDER 'w10 w11 w12'

Genie loads `libQnnSystem.so` and `libQnnHtp.so` by these names, from its own folder if no library of that name is in
the process yet. So ours are loaded first. (A program in C does the same, or is started with them in LD_PRELOAD.)

One JSON object is printed: the tokens of the prompts, those that were generated, their text, and how often each graph
was executed. `--set use-mmap=true` sets an option of the backend, `--count` limits the tokens, `--verbose` prints what
our libraries log. `--extensions FILE` is Genie's file of devices, such as {"devices": [{"soc_model": 69}]}.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isthmus import capi

QUERY = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint32), ctypes.c_uint32, ctypes.c_int, ctypes.c_void_p)
"""Called with new tokens, their number, and where in the sentence they are."""
COMPLETE = 0
"""The query is a whole sentence."""


class GenieError(Exception):
    """A function of Genie has failed."""


class Genie:
    """The functions of a `libGenie.so` that a dialog needs."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self.executions: dict[str, int] = {}

    @property
    def version(self) -> str:
        """The version of its API."""
        return ".".join(str(self._library[f"Genie_getApi{part}Version"]()) for part in ("Major", "Minor", "Patch"))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function and raise its status if it is not 0."""
        status = self._library[name](*arguments)
        if status:
            raise GenieError(f"{name}: status {status}")

    def generate(self, config: Mapping[str, Any], prompts: list[list[int]], count: int) -> list[list[int]]:
        """Create a dialog and return the tokens that it generates for each prompt, after a reset each."""
        made, dialog = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("GenieDialogConfig_createFromJson", json.dumps(config).encode(), ctypes.byref(made))
        try:
            self.call("GenieDialog_create", made, ctypes.byref(dialog))
            try:
                self.call("GenieDialog_setMaxNumTokens", dialog, ctypes.c_uint32(count))
                answers = [self._answer(dialog, prompt) for prompt in prompts]
                self.executions = {graph.name: graph.stats.executions for graph in capi.graphs()}
                return answers
            finally:
                self.call("GenieDialog_free", dialog)
        finally:
            self.call("GenieDialogConfig_free", made)

    def _answer(self, dialog: ctypes.c_void_p, prompt: list[int]) -> list[int]:
        """Return the tokens that a dialog generates for a prompt."""
        tokens: list[int] = []

        def take(new: Any, number: int, code: int, data: Any) -> None:
            tokens.extend(new[:number])

        callback = QUERY(take)
        given = (ctypes.c_uint32 * len(prompt))(*prompt)
        self.call("GenieDialog_tokenQuery", dialog, given, ctypes.c_uint32(len(prompt)), COMPLETE, callback, None)
        self.call("GenieDialog_reset", dialog)
        return tokens


def configured(folder: Path, settings: Mapping[str, Any], extensions: Path | None = None) -> dict[str, Any]:
    """Return the configuration of a folder with absolute paths and other options of the backend."""
    config: dict[str, Any] = json.loads((folder / "genie_config.json").read_text())
    dialog = config["dialog"]
    dialog["tokenizer"]["path"] = str(folder.absolute() / dialog["tokenizer"]["path"])
    binary = dialog["engine"]["model"]["binary"]
    binary["ctx-bins"] = [str(folder.absolute() / name) for name in binary["ctx-bins"]]
    backend = dialog["engine"]["backend"]
    backend["QnnHtp"] |= settings
    if extensions is not None:
        backend["extensions"] = str(extensions.absolute())
    return config


def value(text: str) -> Any:
    """Read the value of an option: JSON, or else text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def main() -> None:
    """Read the command line, generate tokens and print them."""
    parser = argparse.ArgumentParser(description="Generate tokens with Genie.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("prompts", nargs="+", help="words of the decoder's vocabulary, w3 to w95")
    parser.add_argument("--count", type=int, default=24, help="how many tokens to generate for a prompt")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the backend")
    parser.add_argument("--extensions", type=Path, help="a file with options of devices, which Genie's library reads")
    parser.add_argument("--verbose", action="store_true", help="print what our libraries log")
    parser.add_argument("--libraries", type=Path, required=True, help="the folder of our libraries")
    parser.add_argument("--genie", type=Path, help="libGenie.so (default: that of onnxruntime-qnn)")
    given = parser.parse_args()
    if not (given.folder / "genie_config.json").is_file():
        parser.error(f"{given.folder} has no genie_config.json; make_decoder.py writes one unless --window is given")
    if given.verbose:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    for name in ("libQnnSystem.so", "libQnnHtp.so"):
        capi.load(given.libraries, name)
    library = given.genie
    if library is None:
        import onnxruntime_qnn

        library = Path(onnxruntime_qnn.get_library_path()).parent / "libGenie.so"
    settings = {name: value(text) for name, _, text in (each.partition("=") for each in given.set)}
    genie = Genie(library)
    vocabulary = json.loads((given.folder / "tokenizer.json").read_text())["model"]["vocab"]
    prompts = [[vocabulary[word] for word in prompt.split()] for prompt in given.prompts]
    answers = genie.generate(configured(given.folder, settings, given.extensions), prompts, given.count)
    words = {token: word for word, token in vocabulary.items()}
    texts = [" ".join(words[token] for token in answer) for answer in answers]
    told = {"version": genie.version, "prompts": prompts, "answers": answers, "texts": texts}
    print(json.dumps(told | {"executions": genie.executions}), flush=True)


if __name__ == "__main__":
    main()
