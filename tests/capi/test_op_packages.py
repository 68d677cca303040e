"""A client in C registers its op package, validates and adds nodes of it, and executes them; codes are QNN's."""

import ctypes
import os
from pathlib import Path

import numpy as np
import pytest
from support.op_packages import PACKAGE, SHIFT, X, expected
from support.op_packages import build as build_library
from support.suites import long

from capi.host_programs import execute
from capi.qnn_calls import Client, at, opened
from isthmus.cabi import types
from isthmus.cabi.objects import OperationName
from isthmus.graph import DataType, TensorType
from isthmus.tools.cli import main

FLOAT = int(DataType.FLOAT_32)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_library(tmp_path_factory.mktemp("package"))


def register(client: Client, backend: int, library: Path, provider: str = "plain", target: bytes | None = None) -> int:
    return client.backendRegisterOpPackage(backend, os.fsencode(library), provider.encode(), target)


def affine(client: Client, source: types.Tensor, result: types.Tensor, scale: int = FLOAT) -> types.OpConfig:
    scalars = {"scale": (scale, 3), "mode": (types.DATATYPE_STRING, b"plain")}
    config = client.operation("middle", "Affine", [source], [result], scalars, {"shift": SHIFT})
    params = config.v1.params
    # The package wants them in another order.
    params[1], params[2] = types.Param.from_buffer_copy(params[2]), types.Param.from_buffer_copy(params[1])
    config.v1.packageName = PACKAGE.encode()
    return config


def test_a_packages_operation_is_found_validated_added_and_executed(client, library) -> None:
    backend, context = opened(client)
    for key in (105, 402, 403):
        assert client.propertyHasCapability(key) == 0
    graph = client.make("graphCreate", context, b"g", None)
    names = {"x": TensorType.APP_WRITE, "a": TensorType.NATIVE, "b": TensorType.NATIVE, "y": TensorType.APP_READ}
    tensors = {name: client.tensor(name, kind, FLOAT, X.shape) for name, kind in names.items()}
    for tensor in tensors.values():
        client.do("tensorCreateGraphTensor", graph, ctypes.byref(tensor))
    x, a, b, y = tensors.values()
    client.do("graphAddNode", graph, client.operation("twice", "ElementWiseAdd", [x, x], [a]))
    # Before it is registered, no backend knows the package.
    assert client.backendValidateOpConfig(backend, affine(client, a, b)) == 4005
    assert client.graphAddNode(graph, affine(client, a, b)) == 6007
    assert register(client, backend, library, target=b"CPU") == 0
    assert client.backendValidateOpConfig(backend, affine(client, a, b)) == 0
    assert client.backendValidateOpConfig(backend, affine(client, a, b, int(DataType.FLOAT_64))) == 3110
    assert client.graphAddNode(graph, affine(client, a, b, int(DataType.FLOAT_64))) == 6005
    assert "validateOpConfig of Affine answers 3110" in client.reason(6005)
    client.do("graphAddNode", graph, affine(client, a, b))
    client.do("graphAddNode", graph, client.operation("relu", "Relu", [b], [y]))
    client.do("graphFinalize", graph, None, None)
    result = np.zeros_like(X)
    assert client.execute(graph, [at(x, X)], [at(y, result)]) == 0
    np.testing.assert_array_equal(result, expected())
    count, listed = ctypes.c_uint32(), ctypes.POINTER(OperationName)()
    client.do("backendGetSupportedOperations", backend, ctypes.byref(count), ctypes.byref(listed))
    known = {(listed[index].packageName, listed[index].name) for index in range(count.value)}
    assert (PACKAGE.encode(), b"Affine") in known
    assert register(client, backend, library, "second") == 4009
    size = ctypes.c_uint64()
    assert client.contextGetBinarySize(context, ctypes.byref(size)) == 1000
    assert "nodes of op packages" in client.reason(1000)
    client.do("backendFree", backend)


@pytest.mark.parametrize("compiler", ["gcc", long("g++")])
def test_a_program_in_c_brings_a_package_and_survives_it(libraries, build, library, compiler) -> None:
    done = execute(build("op_package_client", compiler), libraries, library)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["done"]), done.stderr


def test_a_refused_registration_answers_qnns_code(client, htp, library, tmp_path) -> None:
    backend = client.make("backendCreate", None, None)
    assert register(client, backend, tmp_path / "missing.so") == 4005
    assert register(client, backend, library, "absent") == 4006
    assert register(client, backend, library, "crash_in_init") == 4007
    assert "(SIGSEGV) in init" in client.reason(4007)
    assert register(client, backend, library, "wrong_version") == 4008
    assert register(client, backend, library, target=b"HTP") == 4004
    assert client.backendRegisterOpPackage(backend, None, b"plain", None) == 4004
    assert register(client, backend + 1, library) == 4011
    client.do("backendFree", backend)
    backend = htp.make("backendCreate", None, None)
    assert (htp.propertyHasCapability(402), register(htp, backend, library)) == (1000, 1000)
    assert "code for the Hexagon processor, which cannot run on this machine" in htp.reason(1000)
    htp.do("backendFree", backend)


def test_the_tools_register_packages_before_a_model_library_composes(library, tmp_path, monkeypatch, capsys) -> None:
    model = build_library(tmp_path, "package_model.cpp")
    monkeypatch.chdir(tmp_path)
    X.tofile("x.raw")
    Path("list.txt").write_text("x.raw\n")
    run = ["net-run", "--model", str(model), "--backend", "libQnnCpu.so", "--input_list", "list.txt"]
    assert main([*run, "--op_packages", f"{library}:plain:CPU"]) == 0
    result = np.fromfile("output/Result_0/y.raw", np.float32)
    np.testing.assert_array_equal(result, expected().reshape(-1))
    assert "0 bytes copied" in capsys.readouterr().out
    assert main(run) != 0
    assert "test.ops::Affine" in capsys.readouterr().err
    made = ["context-binary-generator", "--model", str(model), "--backend", "libQnnCpu.so"]
    assert main([*made, "--op_packages", f"{library}:plain"]) != 0
    assert "a context binary of this backend cannot have" in capsys.readouterr().err
    assert main(["net-run", *run[1:4], "libQnnHtp.so", *run[5:], "--op_packages", f"{library}:plain"]) != 0
    assert "Hexagon" in capsys.readouterr().err
