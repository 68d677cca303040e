"""The version stands in one place, and the changes are told of it."""

import re
from pathlib import Path

import isthmus
from isthmus import version

ROOT = Path(__file__).parents[1]


def test_the_package_takes_its_version_from_its_one_place():
    project = (ROOT / "pyproject.toml").read_text()
    assert 'version = { attr = "isthmus.version.__version__" }' in project
    assert '"version"' in re.search(r"^dynamic = (.*)$", project, re.MULTILINE)[1]
    assert not re.search(r'^version = "', project, re.MULTILINE)
    assert isthmus.__version__ == version.__version__
    assert version.__version__ in version.build_id()


def test_the_newest_changes_are_those_of_this_version():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == version.__version__
    assert headings == sorted(headings, key=lambda name: [int(part) for part in name.split(".")], reverse=True)
