"""Configurations of every backend are read alike: by path, dictionary or both, along the tools' own file, safely."""

import json
import os

import numpy as np
import pytest

from isthmus import Code, QnnError, qnn
from isthmus.backends.seam.config import Key, number, settings
from isthmus.log import LogLevel

FPS = {"lpai_graph": {"execute": {"fps": 30}}}
TABLE = {"part": {"size": Key("size", number(1, 64))}}


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def refused(match):
    return pytest.raises(QnnError, match=rf"^\[{int(Code.BACKEND_INVALID_CONFIG)} .*{match}")


def leading_to(path):
    return {"backend_extensions": {"config_file_path": str(path)}, "context_configs": {"is_persistent_binary": True}}


@pytest.mark.parametrize(
    ("backend", "own", "reported"),
    [
        ("htp", {"htp": {"threads": 2, "reregistration": "other_shape"}}, lambda config: config.threads == 2),
        ("lpai", FPS, lambda config: config.performance.fps == 30),
    ],
)
def test_every_backend_follows_the_tools_own_file(tmp_path, backend, own, reported) -> None:
    inner = write(tmp_path / "own.conf", own)
    with qnn.Backend(backend, write(tmp_path / "tools.json", leading_to(inner.name))) as made:
        assert reported(made.driver.config)
    with qnn.Backend(backend, leading_to(inner)) as made:
        assert reported(made.driver.config)


def test_of_several_sources_the_last_has_the_last_word(tmp_path) -> None:
    path = write(tmp_path / "a.conf", {"part": {"size": 1}})
    found = settings([path, {"part": {"size": 2}}, {}], TABLE)
    assert found.values == {"size": 2}
    assert found.source == f"configuration file '{path}' and configuration and configuration"


def test_two_sources_may_lead_to_the_same_file(tmp_path) -> None:
    inner = write(tmp_path / "own.conf", {"part": {"size": 7}})
    tools = [write(tmp_path / f"{name}.json", leading_to(inner)) for name in ("one", "two")]
    assert settings(tools, TABLE).values["size"] == 7


@pytest.mark.parametrize("spelling", ["circle.json", "./circle.json", "../{folder}/circle.json", "link.json"])
def test_a_file_that_leads_back_to_itself_is_refused_however_it_is_spelled(tmp_path, spelling) -> None:
    write(tmp_path / "circle.json", leading_to(spelling.format(folder=tmp_path.name)))
    os.symlink("circle.json", tmp_path / "link.json")
    with refused("it leads back to itself"):
        settings(tmp_path / "circle.json", TABLE)


def test_a_longer_circle_is_refused_too(tmp_path) -> None:
    write(tmp_path / "a.json", leading_to("b.json"))
    write(tmp_path / "b.json", leading_to("a.json"))
    with refused(r"b\.json', key 'backend_extensions\.config_file_path': leads to .*a\.json.*leads back"):
        settings(tmp_path / "a.json", TABLE)


def test_a_file_that_is_missing_is_refused_with_the_file_that_led_to_it(tmp_path) -> None:
    path = write(tmp_path / "tools.json", leading_to("gone.conf"))
    where = r"tools\.json', key 'backend_extensions\.config_file_path'"
    with refused(rf"{where}: leads to .*gone\.conf': it cannot be read"):
        settings(path, TABLE)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b'{"part": {"size": ' + b"9" * 5000 + b"}}", "too many digits"),
        (b'\xef\xbb\xbf{"part": {}}', "byte order mark"),
        (b'{"part": {"size": NaN}}', "is NaN"),
        (b'{"part": {"size": 1.0}}', r"is 1\.0"),
        (b'{"part": {"size": 1}} {}', "not valid JSON"),
        (b" " * (1 << 20) + b"{}", "larger than 1048576 bytes"),
    ],
    ids=["digits", "mark", "nan", "float", "two", "large"],
)
def test_contents_that_cannot_be_meant_are_refused(tmp_path, content, rule) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(content)
    with refused(rf"c\.json.*{rule}"):
        settings(path, TABLE)


def test_a_number_of_thousands_of_digits_in_a_dictionary_is_refused(tmp_path) -> None:
    with refused("key 'part.size': must be an integer from 1 to 64, is a number of 16610 bits"):
        settings({"part": {"size": 10**5000}}, TABLE)


def test_integers_of_numpy_are_numbers() -> None:
    assert settings({"part": {"size": np.int64(5)}}, TABLE).values == {"size": 5}


@pytest.mark.parametrize("path", ["x" * 5000, "a\0b", "", "x/" * 3000])
@pytest.mark.parametrize("followed", [False, True])
def test_strings_that_cannot_be_paths_are_refused(path, followed) -> None:
    rule = "must be a path" if followed and not path else "cannot be read"
    with refused(rule) as refusal:
        settings(leading_to(path) if followed else path, TABLE)
    assert len(str(refusal.value)) < 1000


def test_a_pipe_is_refused_and_not_waited_for(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for config in (tmp_path / "pipe", leading_to(tmp_path / "pipe")):
        with refused("a pipe or a device, not a file"):
            settings(config, TABLE)


def test_an_endless_device_is_refused() -> None:
    with refused("a pipe or a device, not a file"):
        settings("/dev/zero", TABLE)


def test_a_dictionary_inside_itself_is_refused() -> None:
    circle = {}
    circle["part"] = circle
    with refused("no such key"):
        settings(circle, TABLE)
    value = {"part": {}}
    value["part"]["size"] = value
    with refused("must be an integer"):
        settings(value, TABLE)


@pytest.mark.parametrize("config", [b"c.json", 3.5, [[]], [None], object()])
def test_what_is_no_configuration_is_refused(config) -> None:
    with refused("neither a path nor a dictionary"):
        settings(config, TABLE)


@pytest.mark.parametrize("value", ["vtcm", "", 3, None, True, [], {"ddr": 1}])
def test_every_unknown_memory_type_is_reported_in_the_documented_words(value) -> None:
    messages = []
    config = {"lpai_graph": {"execute": {"mem_type": value}}}
    with qnn.Backend("lpai", config, lambda level, text: messages.append((level, text))) as backend:
        assert backend.create_context().get_property(qnn.lpai.MODEL_BUFFER_MEM_TYPE) is qnn.lpai.MemType.UNDEFINED
    assert messages == [(LogLevel.ERROR, "Invalid memory type")]


def test_a_key_with_a_line_break_is_quoted(tmp_path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"htp": {"uni\\nts": 1}}')
    with pytest.raises(QnnError, match=r"key 'htp\.uni\\nts'") as refusal:
        qnn.Backend("htp", file)
    assert "\n" not in str(refusal.value)
