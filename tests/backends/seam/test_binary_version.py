"""A context binary of another version of the format, older or newer, is refused as such."""

import struct

import pytest
from support import tiny

from isthmus import Code, QnnError
from isthmus.backends.seam import binary
from isthmus.tools.cli import main


@pytest.mark.parametrize("version", sorted({0, binary.FORMAT.version - 1, binary.FORMAT.version + 1, 1 << 31}))
def test_a_binary_of_any_other_version_is_refused_as_such(tmp_path, version) -> None:
    tiny.gate(tmp_path / "gate.onnx", 4)
    arguments = ["--model", tmp_path / "gate.onnx", "--backend", "libQnnHtp.so", "--binary_file", "gate"]
    assert main(["context-binary-generator", *map(str, arguments), "--output_dir", str(tmp_path)]) == 0
    content = bytearray((tmp_path / "gate.bin").read_bytes())
    assert struct.unpack_from("<I", content, 8) == (binary.FORMAT.version,)
    struct.pack_into("<I", content, 8, version)
    with pytest.raises(QnnError, match=f"version {version}") as refusal:
        binary.inspect(bytes(content))
    assert refusal.value.code is Code.CONTEXT_BINARY_VERSION
