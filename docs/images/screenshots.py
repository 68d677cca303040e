"""Makes the pictures of this folder from a model of the test suite: ``python docs/images/screenshots.py``.

It needs Chromium, and the models that ``make models`` fetches.
"""

import struct
import sys
import tempfile
import zlib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support import chromium, zoo  # noqa: E402

from isthmus.tools.cli import main  # noqa: E402

MAX_BYTES = 150_000
MAP = "document.querySelector('section.map').memoryMap"


def recompressed(png: bytes) -> bytes:
    """Return a PNG with the same pixels, compressed as well as zlib can; chunks without pixels are left out."""
    place, chunks = 8, []
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        chunks.append((png[place + 4 : place + 8], png[place + 8 : place + 8 + length]))
        place += 12 + length
    data = zlib.compress(zlib.decompress(b"".join(body for kind, body in chunks if kind == b"IDAT")), 9)
    header = next(body for kind, body in chunks if kind == b"IHDR")
    parts = [(b"IHDR", header), (b"IDAT", data), (b"IEND", b"")]
    return png[:8] + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )


def save(name: str, page: chromium.Page) -> None:
    """Write what a page shows to a file of this folder."""
    data = recompressed(page.screenshot())
    assert len(data) <= MAX_BYTES, f"{name} has {len(data):,} bytes"
    assert not page.problems, page.problems
    (HERE / name).write_bytes(data)
    print(f"{name}: {len(data):,} bytes")


def point_at_a_block(page: chromium.Page) -> None:
    """Move the mouse over a large block, so that the picture shows what a reader sees there."""
    place = page.evaluate(
        f"(() => {{ const others = {MAP}.plan.blocks.filter(each => !each.atPeak).sort((a, b) => b.bytes - a.bytes);"
        f"const [x, y] = {MAP}.place(others[1]), box = document.querySelector('canvas.blocks').getBoundingClientRect();"
        "return [box.left + x, box.top + y]; })()"
    )
    page.mouse("mouseMoved", *place)


def make() -> None:
    """Make all pictures."""
    model = str(zoo.path("hand_recrop"))
    with tempfile.TemporaryDirectory() as folder, chromium.browser() as page:
        path = Path(folder) / "plan.html"
        assert main(["plan", model, "--backend", "htp", "--html", str(path), "--svg", str(HERE / "plan.svg")]) == 0
        page.open(path)
        point_at_a_block(page)
        save("plan.png", page)
        page.open(path, dark=True)
        point_at_a_block(page)
        save("plan-dark.png", page)
        page.open(path, chromium.PHONE, touch=True)
        page.evaluate("scrollTo(0, document.querySelector('section.figures').offsetTop - 12)")
        save("plan-phone.png", page)


if __name__ == "__main__":
    make()
