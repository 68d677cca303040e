"""Graphs that share weights in a binary, from outside: a client in C, the tool that makes binaries, ONNX Runtime."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny
from support.alone import alone

from capi.qnn_calls import Client, at
from capi.test_binary_information import Described
from capi.test_custom_configs import context_config
from isthmus import qnn
from isthmus.backends.htp.options import HtpContextOption
from isthmus.backends.vendor.structures import describe
from isthmus.graph import DataType, TensorType
from isthmus.qnn import ClientTensor
from isthmus.tools.cli import main

SIZE = 512
WEIGHTS = (np.random.default_rng(0).standard_normal((SIZE, SIZE)) * 0.05).astype(np.float16).astype(np.float32)
"""Numbers of 16 bits, which a binary stores in 16 bits."""
STORED = 2 * WEIGHTS.size
ROWS = {"prefill": 128, "decode": 1}
LITTLE = 80_000
"""What a further graph of the same weights may add to a binary."""


def compose(client: Client, context: int, name: str, rows: int) -> None:
    """Compose and finalize a product with the weights."""
    graph = client.make("graphCreate", context, name.encode(), None)
    x = client.tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (rows, SIZE))
    w = client.tensor(f"weights of {name}", TensorType.STATIC, DataType.FLOAT_32, WEIGHTS.shape, data=WEIGHTS)
    y = client.tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (rows, SIZE))
    for tensor in (x, w, y):
        client.do("tensorCreateGraphTensor", graph, ctypes.byref(tensor))
    client.do("graphAddNode", graph, client.operation("product", "MatMul", [x, w], [y]))
    client.do("graphFinalize", graph, None, None)


def compose_binary(client: Client, backend: int, names: list[str], shares: bool) -> Any:
    """The binary of a context with these graphs; with the option if they are to share."""
    option = context_config(client, HtpContextOption.WEIGHT_SHARING_ENABLED, weightSharingEnabled=True)
    context = client.make("contextCreate", backend, None, option if shares else None)
    for name in names:
        compose(client, context, name, ROWS[name])
    binary = client.binary(context)
    client.do("contextFree", context, None)
    return binary


def constants(libraries: Path, binary: Any) -> list[tuple[int, int]]:
    """The bytes of constants that each graph has alone and that graphs share, as the system library says."""
    described = Described(libraries, binary)
    figures = [graph["figures"] for graph in describe(described.info)["graphs"]]
    described.free()
    return [(each["constants"], each["shared_weights"]) for each in figures]


def stated(binary: Path) -> list[tuple[int, int]]:
    """The same, as Python says."""
    figures = [graph.figures for graph in qnn.SystemContext().get_binary_info(binary).graphs]
    return [(each.constants, each.shared_weights) for each in figures if each is not None]


def test_a_client_in_c_gets_a_binary_with_the_weights_once_by_context_option_1(htp: Client, libraries: Path) -> None:
    assert HtpContextOption.WEIGHT_SHARING_ENABLED == 1
    backend = htp.make("backendCreate", None, None)
    alone, both = (compose_binary(htp, backend, names, True) for names in (["prefill"], list(ROWS)))
    assert len(both) - len(alone) < LITTLE
    assert constants(libraries, alone) == [(STORED, 0)], "one graph alone shares nothing"
    assert constants(libraries, both) == [(0, STORED)] * 2
    apart = compose_binary(htp, backend, list(ROWS), False)
    assert len(apart) > 2 * STORED
    assert constants(libraries, apart) == [(STORED, 0)] * 2
    restored = ctypes.c_void_p()
    htp.do("contextCreateFromBinary", backend, None, None, both, len(both), ctypes.byref(restored), None)
    described = Described(libraries, both)
    for index, (name, rows) in enumerate(ROWS.items()):
        graph = htp.make("graphRetrieve", restored, name.encode())
        info = described.fields.graphs[index].graphInfoV3
        given = np.random.default_rng(rows).standard_normal((rows, SIZE)).astype(np.float32)
        found = np.zeros_like(given)
        assert htp.execute(graph, [at(info.graphInputs[0], given)], [at(info.graphOutputs[0], found)]) == 0
        np.testing.assert_allclose(found, given @ WEIGHTS, atol=1e-4)
    described.free()
    htp.do("contextFree", restored, None)
    htp.do("backendFree", backend)


def model(path: Path, rows: int) -> Path:
    """A model in ONNX of the product."""
    from onnx import helper

    return tiny.save(
        path, [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [rows, SIZE]}, {"y": [rows, SIZE]}, {"w": WEIGHTS}
    )


@pytest.mark.parametrize("chosen", ["context", "extensions", None])
def test_the_tool_makes_a_binary_with_the_weights_of_two_models_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], chosen: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, rows in ROWS.items():
        model(Path(f"{name}.onnx"), rows)
    settings = {"context": {"weight_sharing_enabled": True}}
    Path("htp.json").write_text(json.dumps(settings))
    Path("extensions.json").write_text(
        json.dumps(
            {
                "backend_extensions": {
                    "shared_library_path": "libQnnHtpNetRunExtensions.so",
                    "config_file_path": "htp.json",
                }
            }
        )
    )
    files = {"context": ["--config_file", "htp.json"], "extensions": ["--config_file", "extensions.json"]}
    command = ["context-binary-generator", "--model", ",".join(f"{name}.onnx" for name in ROWS)]
    assert main([*command, "--backend", "libQnnHtp.so", "--binary_file", "both", *files.get(chosen or "", [])]) == 0
    binary = Path("output/both.bin")
    capsys.readouterr()
    assert main(["inspect", str(binary), "--json"]) == 0
    own, shared = (0, STORED) if chosen else (STORED, 0)
    reported = json.loads(capsys.readouterr().out)["weights"]
    assert {key: reported[key] for key in ("own", "shared", "total")} == {
        "own": dict.fromkeys(ROWS, own), "shared": shared, "total": 2 * own + shared,
    }  # fmt: skip
    assert [(each["graph"], each["nbytes"]) for each in reported["unshared"]] == [(name, own) for name in ROWS if own]
    assert main(["inspect", str(binary)]) == 0
    table, _, reasons = capsys.readouterr().out.partition("\nnot shared:\n")
    lines = "524,288 bytes in 1 constant: equal in {}, but the context was created without weight sharing"
    others = {"prefill": "decode", "decode": "prefill"}
    reported = [] if chosen else [f"  {name}: {lines.format(other)}" for name, other in others.items()]
    assert reasons.splitlines() == reported
    table = dict(line.rsplit(None, 1) for line in table.splitlines()[-5:])
    counts = {**dict.fromkeys(ROWS, own), "shared, once": shared, "in all": 2 * own + shared}
    assert table == {"weights": "bytes", **{f"  {name}": f"{count:,}" for name, count in counts.items()}}
    assert main(["inspect", str(binary), "--graph", "decode", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights"] is None, "there is nothing to add up"
    assert stated(binary) == ([(0, STORED)] * 2 if chosen else [(STORED, 0)] * 2)
    assert (binary.stat().st_size < STORED + 2 * LITTLE) == bool(chosen)
    given = np.random.default_rng(1).standard_normal((1, SIZE)).astype(np.float32)
    result = np.zeros_like(given)
    with qnn.Backend("htp") as backend:
        graph = backend.create_context_from_binary(binary).retrieve("decode")
        graph.execute([ClientTensor("x", given)], [ClientTensor("y", result)])
    np.testing.assert_allclose(result, given @ WEIGHTS, atol=1e-4)


def write_binary(library: str, path: str) -> None:
    """Write a binary of two graphs that share weights, made by a library."""
    client = Client(Path(library))
    Path(path).write_bytes(compose_binary(client, client.make("backendCreate", None, None), list(ROWS), True))


def test_inspect_adds_up_the_weights_of_a_binary_of_the_vendors_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
    from capi import ort_provider

    binary = tmp_path / "theirs.bin"
    alone(__file__, "write_binary", str(ort_provider.vendor_library("QnnHtp")), str(binary))
    assert main(["inspect", str(binary), "--json"]) == 0
    weights = json.loads(capsys.readouterr().out)["weights"]
    assert list(weights["own"]) == list(ROWS)
    assert weights["total"] == sum(weights["own"].values()) + weights["shared"]
    assert max(weights["own"].values()) < LITTLE < STORED <= weights["shared"]
    assert main(["inspect", str(binary)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["in", "all", f"{weights['total']:,}"]


def test_onnx_runtimes_sessions_that_share_contexts_share_weights(libraries: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
    from capi import ort_provider

    library = libraries / "libQnnHtp.so"
    strict = {"session.disable_cpu_ep_fallback": "1", "ep.share_ep_contexts": "1"}
    caches = {name: tmp_path / f"{name}_cached.onnx" for name in ROWS}
    for name, rows in ROWS.items():
        config = {**strict, "ep.context_enable": "1", "ep.context_embed_mode": "0"}
        ending = {"ep.stop_share_ep_contexts": "1"} if name == list(ROWS)[-1] else {}
        config |= {"ep.context_file_path": str(caches[name]), **ending}
        ort_provider.session(model(tmp_path / f"{name}.onnx", rows), library, config=config)
    [binary] = tmp_path.glob("*.bin")
    assert stated(binary) == [(0, STORED)] * 2
    assert binary.stat().st_size < STORED + 2 * LITTLE
    sessions = {name: ort_provider.session(file, library, config=strict) for name, file in caches.items()}
    for name, rows in ROWS.items():
        given = np.random.default_rng(rows).standard_normal((rows, SIZE)).astype(np.float32)
        np.testing.assert_allclose(sessions[name].run(None, {"x": given})[0], given @ WEIGHTS, atol=1e-3)
