"""Profiles of chips: how many process domains they have, of which size and in which order, each with its source.

The facts that are known of chips are data in ``profiles.json``. What a chip's entry leaves out is that of "default".
A user's own file has one such entry. Its keys are those of `ChipProfile`, all optional:

    {"name": "our board", "domains": [0, 2], "capacity": 3500000000, "alignment": "power of two",
     "free_ram": 6000000000, "soc_model": 69, "dsp_arch": "v79", "vtcm_mb": 8,
     "sources": {"capacity": "measured by us"}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from isthmus.errors import Code, QnnError, did_you_mean
from isthmus.system import reading

FILE = Path(__file__).with_name("profiles.json")
DEFAULT = "default"
"""The profile of a chip of which nothing is known."""
POWER_OF_TWO = "power of two"
"""The alignment by which a mapping begins at a multiple of the largest power of two that is not above its size."""
MAX_DOMAINS = 64
MAX_BYTES = 1 << 40
MAX_FILE = 1 << 20
"""The limits of a profile's numbers, and of its file."""
_KEYS = ("name", "domains", "capacity", "alignment", "free_ram", "soc_model", "dsp_arch", "vtcm_mb", "sources")
_FIGURES = ("domains", "capacity", "alignment", "free_ram", "dsp_arch", "vtcm_mb")


@dataclass(frozen=True)
class Domain:
    """A process domain: its number, and how many bytes can be mapped in it."""

    number: int
    capacity: int


@dataclass(frozen=True)
class Fact:
    """A figure of a profile in words, and where it is from: "documented", "measured …" or "assumed"."""

    name: str
    value: str
    source: str


@dataclass(frozen=True)
class ChipProfile:
    """What is known of a chip's process domains.

    - `domains`: its domains in the order in which they are tried.
    - `power_of_two`: whether a mapping begins at a multiple of the largest power of two that is not above its size.
      Otherwise it begins at the lowest free byte, and nothing is lost between mappings.
    - `alignment`: the multiple at which other mappings begin.
    - `soc`, `arch`, `vtcm_mb`: the number of the chip, its Hexagon version and its on-chip memory; 0 if not known.
    - `sources`: where each figure is from, by its key in a file.
    - `free_ram`: the bytes of memory that are free, which all domains share; 0 if that is not known, for any number.
    """

    name: str
    domains: tuple[Domain, ...]
    power_of_two: bool = False
    alignment: int = 1
    soc: int = 0
    arch: int = 0
    vtcm_mb: int = 0
    sources: Mapping[str, str] = field(default_factory=dict)
    free_ram: int = 0

    @property
    def capacity(self) -> int:
        """The bytes of all domains together."""
        return sum(each.capacity for each in self.domains)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The figures with their sources, for a reader."""
        sizes = [f"{each.capacity:,}" for each in self.domains]
        values = {
            "domains": ", ".join(str(each.number) for each in self.domains),
            "capacity": sizes[0] if len(set(sizes)) == 1 else ", ".join(sizes),
            "alignment": POWER_OF_TWO if self.power_of_two else str(self.alignment),
            "free_ram": f"{self.free_ram:,}" if self.free_ram else "",
            "dsp_arch": f"v{self.arch}" if self.arch else "",
            "vtcm_mb": str(self.vtcm_mb) if self.vtcm_mb else "",
        }
        return tuple(Fact(name, value, self.sources.get(name, "not stated")) for name, value in values.items() if value)


@lru_cache(maxsize=1)
def _stated_profiles() -> Mapping[str, Any]:
    content: dict[str, Any] = json.loads(FILE.read_text())
    return content


def profile_names() -> tuple[str, ...]:
    """Return the names of the profiles that the package has."""
    return tuple(_stated_profiles())


def profile(name: str | Path = DEFAULT, *, soc: int = 0, arch: int = 0, vtcm_mb: int = 0) -> ChipProfile:
    """Return the profile of a chip, or of a file.

    - `name`: a chip such as "SM8750", "default", or a file (``.json``). A chip without an entry gets the figures of
      "default" under its own name.
    - `soc`, `arch`, `vtcm_mb`: what else is known of the chip, as Qualcomm's library says; 0 if it is not known.

    Errors: COMMON_INVALID_ARGUMENT for a file that cannot be read, or that is no profile.

    >>> [each.number for each in profile("SA8255P").domains]
    [0, 2, 4]
    >>> profile("SM8650").sources["domains"].partition(":")[0]
    'assumed'
    """
    if isinstance(name, Path) or name.lower().endswith(".json"):
        return _of_file(Path(name))
    by_name = {each.lower(): each for each in _stated_profiles()}
    numbers = {entry["soc_model"]: each for each, entry in _stated_profiles().items() if "soc_model" in entry}
    key = by_name.get(name.lower()) or numbers.get(soc, DEFAULT)
    stated: dict[str, Any] = {"name": name if key == DEFAULT else key, **_stated_profiles()[key]}
    made = _merge(stated, f"profile '{name}'")
    chip = {"dsp_arch": arch, "vtcm_mb": vtcm_mb}
    sources = dict(made.sources)
    for each, value in chip.items():
        if value and each not in sources:
            sources[each] = "measured: what Qualcomm's compiler for x86 gives a graph for this chip"
    if key == DEFAULT and made.name != DEFAULT:
        sources["domains"] = f"assumed: no figures of {made.name} are known; these are those of '{DEFAULT}'"
    return ChipProfile(
        made.name, made.domains, made.power_of_two, made.alignment, soc or made.soc, arch or made.arch,
        vtcm_mb or made.vtcm_mb, sources, made.free_ram,
    )  # fmt: skip


def _of_file(path: Path) -> ChipProfile:
    """Read a user's profile."""
    what = f"chip profile '{path}'"
    try:
        content = reading.contents(path, MAX_FILE)
    except OSError as problem:
        raise _refusal(what, f"cannot be read: {problem.strerror}", reading.nearest_file(path)) from None
    try:
        stated = json.loads(content)
    except (ValueError, RecursionError):
        raise _refusal(what, "it is not JSON") from None
    if not isinstance(stated, dict):
        raise _refusal(what, "it is not an object")
    sources = stated.get("sources", {})
    if not isinstance(sources, dict) or not all(isinstance(each, str) for each in (*sources, *sources.values())):
        raise _refusal(what, "'sources' must name a text for each key")
    own = {each: f"stated in {path.name}" for each in _FIGURES if each in stated}
    return _merge({"name": path.stem, **stated, "sources": own | sources}, what)


def _merge(stated: Mapping[str, Any], what: str) -> ChipProfile:
    """Return the profile of an entry, with the default's figures for those that it leaves out."""
    unknown = [key for key in stated if key not in _KEYS]
    if unknown:
        hint = did_you_mean(unknown[0], _KEYS) or f"Keys are {', '.join(_KEYS)}."
        raise _refusal(what, f"there is no key '{unknown[0]}'", hint)
    base = _stated_profiles()[DEFAULT]
    whole = {**base, **stated}
    if not isinstance(whole["name"], str) or not whole["name"]:
        raise _refusal(what, "'name' must be a text")
    numbers = whole["domains"]
    if not isinstance(numbers, list) or not 1 <= len(numbers) <= MAX_DOMAINS:
        raise _refusal(what, f"'domains' must list 1 to {MAX_DOMAINS} numbers")
    numbers = [_number(what, "domains", each, 0, 1 << 16) for each in numbers]
    if len({*numbers}) < len(numbers):
        raise _refusal(what, "'domains' names a domain twice")
    sizes = whole["capacity"] if isinstance(whole["capacity"], list) else [whole["capacity"]] * len(numbers)
    if len(sizes) != len(numbers):
        raise _refusal(what, f"'capacity' has {len(sizes)} numbers for {len(numbers)} domains")
    capacities = [_number(what, "capacity", each, 1, MAX_BYTES) for each in sizes]
    by_size = whole["alignment"] == POWER_OF_TWO
    alignment = 1 if by_size else _number(what, "alignment", whole["alignment"], 1, 1 << 32)
    if alignment & (alignment - 1):
        raise _refusal(
            what, f"'alignment' {alignment} is no power of two", f"'{POWER_OF_TWO}' means that of each size."
        )
    arch = whole.get("dsp_arch", "v0")
    if not isinstance(arch, str) or arch[:1] != "v" or not arch[1:].isdecimal() or len(arch) > 5:
        raise _refusal(what, "'dsp_arch' must be a text such as 'v79'")
    ram = _number(what, "free_ram", whole.get("free_ram", 0), 0, MAX_BYTES)
    soc, vtcm = (_number(what, key, whole.get(key, 0), 0, 1 << 16) for key in ("soc_model", "vtcm_mb"))
    domains = tuple(map(Domain, numbers, capacities))
    sources = {**base["sources"], **whole["sources"]}
    return ChipProfile(whole["name"], domains, by_size, alignment, soc, int(arch[1:]), vtcm, sources, ram)


def _number(what: str, key: str, value: Any, least: int, most: int) -> int:
    """Return an integer of a profile; refuse anything else."""
    if type(value) is not int or not least <= value <= most:
        raise _refusal(what, f"'{key}' must be an integer from {least} to {most}")
    return value


def _refusal(what: str, rule: str, hint: str = "") -> QnnError:
    return QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule, hint)
