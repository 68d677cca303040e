"""The writer of the table of chips, ``chips.json``, with the library that is installed::

python -m isthmus.backends.vendor.chips
"""

from __future__ import annotations

import json
import re
from typing import Any

from isthmus.backends.htp.chips import FILE
from isthmus.backends.vendor.composition import specimen
from isthmus.backends.vendor.library import VendorProcess, find

MAX_NUMBER = 400
"""Numbers below this are tried."""


def learn() -> dict[str, Any]:
    """Ask the installed library for all its chips, and return the contents of the table.

    The name and the architecture are in its log. VTCM is what a graph gets that asks for all there is, and so are the
    vector threads of one that asks for more than there are.
    """
    found: list[tuple[int, str, int, int, int]] = []
    with VendorProcess(find(), log_level=2) as process:
        for soc in range(MAX_NUMBER):
            # VTCM of 0 means all of the chip's.
            answer, _ = process.call("context", target={"soc": soc, "vtcm_mb": 0, "hvx_threads": 64}, tolerate=True)
            if answer.get("code"):
                continue
            text = "\n".join(answer["log"])
            name, arch = re.search(r"on soc (\S+)", text), re.search(r"will overwrite it to (\d+)", text)
            process.call("compose", {"graph": specimen().to_bytes()}, name="specimen")
            answer, _ = process.call("finalize", name="specimen", tolerate=True)
            vtcm = threads = 0
            if not answer.get("code"):
                answer, _ = process.call("describe")
                figures = answer["graphs"][0]["figures"]
                vtcm, threads = figures["vtcm"] >> 20, figures["hvx_threads"]
            called = name[1] if name and not name[1].startswith("UNKNOWN") else ""
            found.append((soc, called, int(arch[1]) if arch else 68, vtcm, threads))
            process.call("close_context")
        return {"library": process.build, "chips": found}


def _main() -> None:
    content = learn()
    rows = ",\n".join(f"  {json.dumps(row)}" for row in content["chips"])
    FILE.write_text(f'{{\n "library": {json.dumps(content["library"])},\n "chips": [\n{rows}\n ]\n}}\n')
    print(f"{FILE}: {len(content['chips'])} chips, {sum(bool(row[3]) for row in content['chips'])} of them with HTP")


if __name__ == "__main__":
    _main()
