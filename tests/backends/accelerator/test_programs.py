"""Once it is confined the accelerator opens no file: whatever a program of any kind needs there is loaded before."""

from dataclasses import replace
from itertools import islice

import pytest
from engine.native import specimens
from support import zoo
from support.suites import long, only

import isthmus
from isthmus.backends.accelerator.process import Accelerator
from isthmus.backends.accelerator.queue import Queue
from isthmus.backends.seam import binary


@pytest.mark.parametrize("every", [10, long(1)])
def test_the_accelerator_loads_programs_of_every_kind_of_kernel(every) -> None:
    with Accelerator() as accelerator, Queue(accelerator) as queue:
        for number, (name, program) in islice(enumerate(specimens.programs(threads=1)), 0, None, every):
            renamed = replace(program, name=f"{number} {name}")
            with binary.ContextBinary(binary.to_bytes([renamed], "htp")) as content:
                assert queue.load(content)


MODELS = ("okay_nabu", "kws_qdq", "efficientnet_lite0", "dtln_1", "precise_vad", "silero_vad_16k")


@pytest.mark.parametrize("key", only(("okay_nabu", "dtln_1"), MODELS))
def test_a_real_model_gives_the_same_in_the_accelerator_as_in_this_process(key) -> None:
    try:
        path = zoo.path(key)
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    results = []
    for backend in ("cpu", "htp"):
        with isthmus.Session(path, backend=backend) as session:
            for index, view in enumerate(session.inputs.values()):
                view.reshape(-1)[...] = (1 + index) % 3
            session.run()
            results.append([view.tobytes() for view in session.outputs.values()])
    assert results[0] == results[1]
