"""Initial values of enumerations, as the printed headers have them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import isthmus
from isthmus.cabi import notation
from isthmus.capi import headers

FILES = Path(isthmus.__file__).parent.rglob("headers.txt")
TEXT = "\n".join(text() for file, text in headers.FILES.items() if file.suffix == ".h")
ENUMERATIONS = {
    name: dict(re.findall(r"(\w+) = (\w+)", members))
    for members, name in re.findall(r"typedef enum \{([^}]*)\} (\w+);", TEXT)
}


def test_each_enumeration_and_no_other_type_has_an_initial_value() -> None:
    declared = [name for file in FILES for name in re.findall(r"(?m)^enum!? (\w+)", file.read_text())]
    assert set(declared) == set(notation._undefined)
    assert set(declared) <= set(ENUMERATIONS)
    assert len(declared) > 60


@pytest.mark.parametrize("name", sorted(notation._undefined))
def test_the_initial_value_of_an_enumeration_is_one_of_its_own(name: str) -> None:
    """The first version; else the undefined value; else, where there is none, the first one."""
    members = ENUMERATIONS[name]
    undefined = [member for member, value in members.items() if value == "QNN_UNDEFINED"]
    # A version of the hardware is none of a structure.
    is_version = "Version" in name and not name.endswith("HwVersion_t")
    first = next(iter(members)) if is_version or not undefined else undefined[-1]
    assert notation._undefined[name] == first
