import pytest
from isthmus import QnnError


@pytest.mark.isthmus(max_copied=0, no_leaks=True)
def test_inputs_and_outputs_are_used_in_place(qnn_session):
    qnn_session("model.onnx").run()


@pytest.mark.isthmus(fault="ssr@1")
def test_the_death_of_the_accelerator_is_reported(qnn_session):
    session = qnn_session("model.onnx")
    with pytest.raises(QnnError, match="1007"):
        session.run()
