"""The version stands in one place, and the list of changes names it."""

import re
from datetime import date
from pathlib import Path

import isthmus
from isthmus import version
from isthmus.capi import installation

ROOT = Path(__file__).parents[1]


def test_the_package_takes_its_version_from_its_one_place() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert 'version = { attr = "isthmus.version.__version__" }' in project
    assert '"version"' in re.search(r"^dynamic = (.*)$", project, re.MULTILINE)[1]
    assert not re.search(r'^version = "', project, re.MULTILINE)
    assert isthmus.__version__ == version.__version__
    assert version.__version__ in version.build_id()


def test_a_build_id_has_the_form_of_the_sdks_own() -> None:
    form = r"v\d+\.\d+\.\d+\.\d+"  # clients search it for v and two numbers, or split it at the points
    sdk = "v" + ".".join(map(str, version.SDK_VERSION))
    for text in (version.PRODUCER, version.build_id()):
        assert re.match(form, text)[0].startswith(f"{sdk}.")
    header = (installation.INCLUDE / "QNN" / "QnnSdkBuildId.h").read_text()
    assert f'#define QNN_SDK_BUILD_ID "{version.PRODUCER}"' in header
    for document in ("c-api.md", "context-binary.md"):
        assert version.PRODUCER in (ROOT / "docs" / document).read_text()


def test_the_newest_changes_are_those_of_this_version() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    versions, dates = zip(*(heading.split(", ") for heading in headings), strict=True)
    assert versions[0] == version.__version__
    assert list(versions) == sorted(versions, key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    # Only the newest version may lack a date: it is that of the next release.
    released = dates[1:] if dates[0] == "not released" else dates
    assert list(released) == sorted(released, reverse=True)
    assert all(date.fromisoformat(each) <= date.today() for each in released)
