"""TFLite files have one shape for each input while a session lasts, whatever their signature says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from frontends.tflite.build import T, single

import isthmus
from isthmus.errors import Code, QnnError


@pytest.mark.parametrize("backend", ["cpu", "htp", "lpai"])
def test_a_tflite_files_open_input_has_the_given_shape_and_no_smaller_one(tmp_path: Path, backend: str) -> None:
    file = tmp_path / "open.tflite"
    file.write_bytes(single("ABS", [T("f32", (1, 4), name="x", signature=(-1, 4))], [T("f32", (1, 4), name="y")]))
    for rows in (1, 3):
        given = None if rows == 1 else {"x": (rows, 4)}
        with isthmus.Session(file, backend=backend, shapes=given) as session:
            x = np.full((rows, 4), -2, np.float32)
            assert session.run({"x": x})["y"].tolist() == (-x).tolist()
            for other in (2, 4):
                with pytest.raises(QnnError, match=rf"must have shape \({rows}, 4\), has \({other}, 4\)") as refused:
                    session.run({"x": np.ones((other, 4), np.float32)})
                assert refused.value.code is Code.GRAPH_INVALID_TENSOR
            assert session.run({"x": x})["y"].tolist() == (-x).tolist()
