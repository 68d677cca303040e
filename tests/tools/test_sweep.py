"""``isthmus sweep`` does every combination of models and settings once, whatever becomes of single processes."""

import csv
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from types import ModuleType

import onnx
import pytest
from support.processes import children, work_with_links
from support.suites import long
from support.waiting import PATIENCE, eventually

from isthmus import qnn
from isthmus.backends.vendor.library import find, is_installed
from isthmus.engine.native import target
from isthmus.errors import Code, QnnError
from isthmus.system import isolated
from isthmus.tools import sweep, sweep_grid, sweep_running
from isthmus.tools.cli import main
from isthmus.tools.sweep_grid import MEMORY, columns_of

needs_package = pytest.mark.skipif(not is_installed(), reason="needs Qualcomm's library, of onnxruntime-qnn")
PLAN = ("camera.tflite", "model.tflite", "--set", "scratch-limit=60%,90%")
"""Four rows: the camera model can be planned within both limits, the wake word model within neither."""
FIGURES = ("camera.tflite", "model.tflite", "--set", "threads=1,2")
"""Four rows, all with figures."""


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    assert main(["samples", str(folder)]) == 0
    return folder


@pytest.fixture
def folder(samples, tmp_path, monkeypatch, capsys):
    """A working folder with the sample models; results are kept beside it."""
    work_with_links(samples, tmp_path, monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    capsys.readouterr()
    return tmp_path


@pytest.fixture
def no_process(monkeypatch):
    """Let every process that a sweep starts fail."""
    monkeypatch.setattr(isolated, "command", lambda module, *arguments: ["false"])


def swept(capsys, *arguments, status=0):
    assert main(["sweep", *arguments, "--state", "state", "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_every_combination_is_a_row_with_what_the_command_reports(folder, capsys) -> None:
    rows = swept(capsys, "camera.tflite", "--set", "scratch-limit=60%,90%", "--backend", "cpu,lpai")["rows"]
    assert [(row["backend"], row["scratch-limit"]) for row in rows] == [
        (backend, limit) for backend in ("cpu", "lpai") for limit in ("60%", "90%")
    ]
    for row in rows:
        arguments = ["--backend", row["backend"], "--scratch-limit", row["scratch-limit"], "--json"]
        assert main(["plan", row["model"], *arguments]) == 0
        report = json.loads(capsys.readouterr().out)
        assert {key: row[key] for key in MEMORY} == {key: report[key] for key in MEMORY}
        assert row["fits"] is True


def test_the_table_and_the_csv_have_the_same_rows(folder, capsys) -> None:
    assert main(["sweep", "camera.tflite", "--set", "threads=1,2", "--csv", "rows.csv", "--state", "state"]) == 0
    titles, *lines = capsys.readouterr().out.splitlines()
    assert titles.split()[:4] == ["model", "backend", "threads", "scratch"]
    rows = list(csv.DictReader((folder / "rows.csv").read_text().splitlines()))
    assert [row["threads"] for row in rows] == ["1", "2"]
    for line, row in zip(lines, rows, strict=True):
        assert line.split()[:4] == ["camera.tflite", "cpu", row["threads"], f"{int(row['scratch_bytes']):,}"]


def test_models_with_odd_names_are_swept(folder, capsys) -> None:
    """A name may look like an option or a formula, or have bytes that are not UTF-8, which are escaped in a table."""
    model = (folder / "camera.tflite").read_bytes()
    names = [b"-dash.tflite", b"--help", b"=1+1.tflite", b"bad\xff.tflite"]
    for name in names:
        (folder / os.fsdecode(name)).write_bytes(model)
    arguments = ["--csv", "rows.csv", "--", *map(os.fsdecode, names)]
    assert main(["sweep", "--state", "state", *arguments]) == 0
    capsys.readouterr()
    lines = (folder / "rows.csv").read_text(encoding="utf-8").splitlines()
    shown = ["'-dash.tflite", "'--help", "'=1+1.tflite", "bad\\udcff.tflite"]
    assert [line.split(",")[0] for line in lines[1:]] == shown


def test_a_page_shows_the_rows_and_the_problems(folder, capsys) -> None:
    assert main(["sweep", *PLAN, "--html", "sweep.html", "--state", "state"]) == 1
    text = (folder / "sweep.html").read_text()
    assert "<script src" not in text
    facts = json.loads(text.partition('id="facts">')[2].partition("</script>")[0])
    figures, bars, table, problems = facts["sections"]
    assert [figure["value"] for figure in figures["figures"]] == [4, 2, 0]
    assert [bar["label"] for bar in bars["bars"]] == [
        f"camera.tflite, cpu, scratch-limit {limit}" for limit in ("60%", "90%")
    ]
    assert [row[:3] for row in table["rows"]] == [
        ["camera.tflite", "cpu", "60%"], ["camera.tflite", "cpu", "90%"],
        ["model.tflite", "", "60%"], ["model.tflite", "", "90%"],
    ]  # fmt: skip
    assert all("its scratch cannot be brought to" in note["detail"] for note in problems["notes"])


def test_models_are_run(folder, capsys) -> None:
    rows = swept(capsys, "camera.tflite", "camera.bin", "--mode", "run", "--repeat", "3")["rows"]
    assert [(row["backend"], row["problem"]) for row in rows] == [("cpu", ""), ("htp", "")]
    assert all(0 < row["min_ms"] <= row["p50_ms"] for row in rows)


# -- single processes --------------------------------------------------------------------------------------------------


def test_a_process_that_crashes_is_one_row_with_its_reason(folder, capsys, monkeypatch) -> None:
    command = isolated.command

    def crashing(module, *arguments):
        code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
        return [sys.executable, "-c", code] if "model.tflite" in arguments else command(module, *arguments)

    monkeypatch.setattr(isolated, "command", crashing)
    rows = swept(capsys, "camera.tflite", "model.tflite", "camera.bin", status=1)["rows"]
    assert [row["problem"] for row in rows] == ["", "its process was ended by SIGSEGV", ""]
    # Another attempt may not crash, so the crash is not kept; the others are.
    monkeypatch.setattr(isolated, "command", command)
    rows = swept(capsys, "model.tflite", "camera.tflite")["rows"]
    assert not any(row["problem"] for row in rows)


def test_a_row_that_takes_too_long_is_ended(folder, capsys, monkeypatch) -> None:
    monkeypatch.setattr(isolated, "command", lambda module, *arguments: ["sleep", "1000"])
    [row] = swept(capsys, "camera.tflite", "--row-timeout", "0.2", status=1)["rows"]
    assert row["problem"] == "it took longer than 0.2 s"


def test_what_is_finished_is_not_computed_again(folder, capsys, monkeypatch) -> None:
    first = swept(capsys, *FIGURES)
    monkeypatch.setattr(isolated, "command", lambda module, *arguments: ["false"])
    assert swept(capsys, *FIGURES) == first
    # Other contents, another setting or a fresh start need a process.
    (folder / "camera.tflite").unlink()
    shutil.copy(folder / "camera_qdq.onnx", folder / "camera.tflite")
    for arguments in (FIGURES, ("model.tflite", "--set", "threads=3"), (*FIGURES, "--no-cache")):
        assert swept(capsys, *arguments, status=1)["rows"][0]["problem"] == "without a message"


@pytest.mark.parametrize("changed", ["nothing", "processor", "sources", "library"])
def test_a_result_is_kept_for_a_processor_the_sources_and_the_library(folder, capsys, monkeypatch, changed) -> None:
    figures = json.dumps({"backend": "cpu", "rows": [{"problem": ""}]})
    monkeypatch.setattr(isolated, "command", lambda module, *arguments: ["echo", figures])
    monkeypatch.delenv("ISTHMUS_TARGET", raising=False)
    monkeypatch.setattr(sweep_grid, "find", lambda path: None)
    monkeypatch.setattr(sweep_grid, "build_of", lambda library: "v2.1")
    arguments = ("camera.tflite", "--mode", "device" if changed == "library" else "plan")
    part = swept(capsys, *arguments, "--shard", "1/1")
    monkeypatch.setattr(isolated, "command", lambda module, *arguments: ["false"])
    if changed == "processor":
        best = target.named(None)
        monkeypatch.setattr(target, "runnable", lambda each: each != best)
    elif changed == "sources":
        (folder / "edited.py").touch()
        monkeypatch.setattr(sweep_grid, "_PACKAGE", folder)
    elif changed == "library":
        monkeypatch.setattr(sweep_grid, "build_of", lambda library: "v2.2")
    again = swept(capsys, *arguments, "--shard", "1/1", status=int(changed != "nothing"))
    assert (again["rows"] == part["rows"]) == (changed == "nothing")
    # Machines of a farm may have different processors, but not different compilers.
    assert (again["sweep"] == part["sweep"]) == (changed != "library")


def test_a_row_with_a_problem_is_computed_again(folder, capsys, monkeypatch) -> None:
    arguments = ("camera.tflite", "--backend", "htp", "--mode", "run", "--repeat", "1")
    monkeypatch.setenv("ISTHMUS_FAULTS", "ssr@1")
    [row] = swept(capsys, *arguments, status=1)["rows"]
    assert row["problem"].startswith("[1007 ")
    monkeypatch.delenv("ISTHMUS_FAULTS")
    [row] = swept(capsys, *arguments)["rows"]
    assert row["problem"] == ""


@pytest.mark.parametrize("state", ["nonsense", long("{}"), long("[1]")])
def test_a_damaged_result_is_computed_again(folder, capsys, state) -> None:
    first = swept(capsys, "camera.tflite")
    [kept] = (folder / "state").iterdir()
    kept.write_text(state)
    assert swept(capsys, "camera.tflite") == first


def command() -> str:
    found = shutil.which("isthmus", path=os.path.dirname(sys.executable))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("extra", "cache", "end"),
    [
        ([], "cache", "; the same command continues"),
        (["--no-cache"], "cache", "; without --no-cache the same command continues"),
        ([], "/proc/cache", ", and not kept: the folder for results cannot be written"),
    ],
)
def test_an_interrupt_promises_no_more_than_is_kept(folder, capsys, monkeypatch, extra, cache, end) -> None:
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    monkeypatch.delenv("ISTHMUS_CACHE_DIR", raising=False)
    monkeypatch.setattr(sweep, "resume", interrupted)
    assert main(["sweep", "camera.tflite", *extra]) == 130
    assert capsys.readouterr().err.splitlines()[0] == f"0 of 1 are finished{end}"


def test_an_interrupted_sweep_continues_where_it_ended(folder) -> None:
    arguments = [command(), "sweep", *FIGURES, "--state", "state", "--jobs", "1"]
    running = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert eventually(lambda: (folder / "state").is_dir() and len(list((folder / "state").glob("*.json"))) >= 1)
    running.send_signal(signal.SIGINT)
    first, second = running.communicate()[1].splitlines()
    assert first.endswith("of 4 are finished; the same command continues")
    assert second == "isthmus: interrupted"
    assert running.returncode == 130
    assert not [file for file in (folder / "state").iterdir() if file.suffix != ".json"]
    finished = {file: file.stat().st_mtime_ns for file in (folder / "state").iterdir()}
    assert subprocess.run(arguments, stdout=subprocess.DEVNULL).returncode == 0
    assert len(list((folder / "state").iterdir())) == 4
    assert finished == {file: file.stat().st_mtime_ns for file in finished}


def test_the_processes_of_a_sweep_end_when_it_is_killed(folder) -> None:
    arguments = [command(), "sweep", "camera.tflite", "--mode", "run", "--repeat", "100000000", "--state", "state"]
    running = subprocess.Popen(arguments)
    assert eventually(lambda: children(running.pid))
    [child] = children(running.pid)
    ended = os.pidfd_open(child)
    try:
        running.kill()
        running.wait()
        assert select.select([ended], [], [], PATIENCE)[0]
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(ended, signal.SIGKILL)
        os.close(ended)


# -- farms -------------------------------------------------------------------------------------------------------------


def test_shards_are_joined_to_the_whole(folder, capsys) -> None:
    whole = swept(capsys, *PLAN, status=1)
    for part in (1, 2):
        report = swept(capsys, *PLAN, "--shard", f"{part}/2", status=1)
        assert [row["scratch-limit"] for row in report["rows"]] == [PLAN[-1].partition("=")[2].split(",")[part - 1]] * 2
        (folder / f"part{part}.json").write_text(json.dumps(report))
    assert swept(capsys, "part2.json", "part1.json", "--merge", status=1) == whole
    assert main(["sweep", "part1.json", "--merge"]) == 2
    assert "part 2 of 2 missing" in capsys.readouterr().err
    (folder / "other.json").write_text(json.dumps(swept(capsys, "camera.tflite", "--shard", "2/2")))
    assert main(["sweep", "part1.json", "other.json", "--merge"]) == 2
    assert "'other.json': it is part of another sweep than 'part1.json'" in capsys.readouterr().err
    assert main(["sweep", "camera.tflite", "--merge"]) == 2
    assert "it is not what `isthmus sweep --shard I/N --json` prints" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [3, {"mode": "walk"}, {"mode": []}, {"settings": 3}, {"settings": {"a": 1}}, {"problem": None}]
)
def test_rows_that_no_sweep_has_are_refused(folder, capsys, wrong) -> None:
    row = {"model": "m", "mode": "run", "settings": {}, "problem": "", **wrong} if isinstance(wrong, dict) else wrong
    part = {"shard": [1, 1], "sweep": "x", "version": "1", "numbers": [0], "rows": [row]}
    (folder / "part.json").write_text(json.dumps(part))
    assert main(["sweep", "part.json", "--merge"]) == 2
    assert "'part.json': it has rows that no sweep has" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [{"shard": ["a", "b"]}, {"shard": [2, 1]}, {"shard": 3}, {"sweep": 3}, {"version": []}, {"numbers": ["x"]},
     {"numbers": [[]]}, {"rows": []}],
)  # fmt: skip
def test_files_that_are_no_parts_are_refused(folder, capsys, wrong) -> None:
    part = {"shard": [1, 1], "sweep": "x", "version": "1", "numbers": [0], "rows": [{}]}
    (folder / "part.json").write_text(json.dumps(part | wrong))
    assert main(["sweep", "part.json", "--merge"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'part.json': it is not what `isthmus sweep --shard I/N --json` prints" in line


CHIP_ROW = {"model": "m.onnx", "backend": None, "mode": "device", "settings": {}, "problem": "", "chip": "SM8750"}


@pytest.mark.parametrize(
    ("row", "status"),
    [
        ({"problem": "it is too large"}, 1), ({"total_ram": 8, "spill_fill": 0}, 0), ({"total_ram": 8}, 2),
        ({"total_ram": [], "spill_fill": 0}, 2), ({"total_ram": 8, "spill_fill": 0, "chip": 3}, 2),
    ],
)  # fmt: skip
def test_only_rows_for_chips_that_can_be_drawn_are_joined(folder, capsys, row, status) -> None:
    part = {"shard": [1, 1], "sweep": "x", "version": "1", "numbers": [0], "rows": [CHIP_ROW | row]}
    (folder / "part.json").write_text(json.dumps(part))
    assert main(["sweep", "part.json", "--merge", "--html", "page.html"]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert ("written: " in line) == (status != 2)
    assert ("it has rows that no sweep has" in line) == (status == 2)


def test_a_farm_computes_rows_on_its_workers(folder, capsys, monkeypatch) -> None:
    """The package distributed, as far as it is used; its workers are this process, without our files."""

    class Client:
        def __init__(self, address):
            assert address == "tcp://farm:8786"

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            pass

        def wait_for_workers(self, count, timeout):
            assert (count, timeout > 0) == (1, True)

        def submit(self, function, *arguments, pure):
            assert not pure
            return Future(function, arguments)

    class Future:
        def __init__(self, function, arguments):
            self.work = function, arguments

        def result(self):
            function, arguments = self.work
            with monkeypatch.context() as elsewhere:
                elsewhere.chdir("/")
                return function(*arguments)

    farm = ModuleType("distributed")
    farm.Client, farm.as_completed = Client, list
    models = ("camera.tflite", "camera.bin", "--config", "eaiParams.conf", "--backend", "lpai")
    here = swept(capsys, *models, status=1)
    monkeypatch.setitem(sys.modules, "distributed", farm)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: farm)
    farmed = (*models, "--no-cache", "--scheduler", "tcp://farm:8786")
    there = swept(capsys, *farmed, status=1)
    assert there["rows"][0]["problem"] == ""
    assert there["rows"][0] == here["rows"][0]
    assert "it is for backend 'htp', not 'lpai'" in there["rows"][1]["problem"]

    problems = iter([MemoryError("a worker\nwas killed"), QnnError(Code.COMMON_MEM_ALLOC, "a worker", "it is full")])

    def ended(*arguments):
        raise next(problems)

    monkeypatch.setattr(sweep_running, "_run_command", ended)
    assert [row["problem"] for row in swept(capsys, *farmed, status=1)["rows"]] == [
        r"its worker has failed: MemoryError: a worker\nwas killed",
        "its worker has failed: QnnError: [1002 COMMON_MEM_ALLOC] a worker: it is full",
    ]


def test_a_missing_farm_package_says_what_to_install(folder, capsys, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["sweep", "camera.onnx", "--scheduler", "tcp://farm:8786", "--state", "state"]) == 2
    assert "pip install 'isthmus[farm]'" in capsys.readouterr().err


def test_a_farm_gets_no_model_with_weights_in_other_files(folder, capsys, monkeypatch) -> None:
    model = onnx.load(folder / "camera.onnx")
    onnx.save(model, folder / "beside.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    assert main(["sweep", "camera.onnx", "beside.onnx", "--scheduler", "tcp://farm:8786", "--state", "state"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'beside.onnx': weights in other files are not sent to workers" in line


@needs_package
def test_models_are_compiled_for_chips(folder, capsys) -> None:
    rows = swept(capsys, "model.onnx", "--mode", "device", "--set", "soc=SM8750,SM8650", "--set", "level=2")["rows"]
    assert [(row["soc"], row["level"]) for row in rows] == [("SM8750", 2), ("SM8650", 2)]
    assert all(row["total_ram"] > 0 and not row["problem"] for row in rows)


@needs_package
def test_a_sweep_for_chips_has_all_that_the_device_command_has(folder, capsys, monkeypatch) -> None:
    """Rows as JSON, CSV and a page, also of a context binary, and with the library and DLBC as settings."""
    with qnn.Backend("qnn-htp", {"qnn-htp": {"soc": "SM8650", "vtcm_mb": 4, "optimization": 2}}) as backend:
        context = backend.create_context()
        context.compose(folder / "model.onnx").finalize()
        (folder / "vendor.bin").write_bytes(context.get_binary())
    expected = []
    for model in ("model.onnx", "vendor.bin"):
        assert main(["device", model, "--level", "2", "--dlbc", "--json"]) == 0
        expected += json.loads(capsys.readouterr().out)["rows"]
    settings = ("--set", "level=2", "--set", "dlbc=on", "--set", f"library={find().backend}")
    files = ("--csv", "rows.csv", "--html", "rows.html", "--no-cache")
    rows = swept(capsys, "model.onnx", "vendor.bin", "--mode", "device", *settings, *files)["rows"]
    for row, other in zip(rows, expected, strict=True):
        # The time of a compilation differs.
        assert {key: row[key] for key in other if key != "finalize_seconds"} == {
            key: other[key] for key in other if key != "finalize_seconds"
        }
    written = list(csv.DictReader((folder / "rows.csv").read_text().splitlines()))
    assert [int(row["total_ram"]) for row in written] == [row["total_ram"] for row in rows]
    facts = json.loads((folder / "rows.html").read_text().partition('id="facts">')[2].partition("</script>")[0])
    assert rows[0]["build"] in facts["subtitle"]
    assert len(facts["sections"][-1]["rows"]) == 2
    assert [row["total_ram"] for row in facts["reports"][0]["rows"]] == [row["total_ram"] for row in rows]


@needs_package
def test_without_its_cache_a_sweep_for_chips_compiles_again(folder, capsys) -> None:
    arguments = ("model.onnx", "--mode", "device", "--set", "level=2")
    first, kept, again = (swept(capsys, *arguments, *extra)["rows"][0] for extra in ((), (), ("--no-cache",)))
    assert kept == first
    assert again["finalize_seconds"] != first["finalize_seconds"]


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "names no model. `isthmus samples .` writes some."),
        (["missing.onnx"], "'missing.onnx': cannot be read: No such file or directory"),
        (["camera.tflite", "missing.onnx"], "'missing.onnx': cannot be read"),
        (["."], "cannot be read: a directory, not a file"),
        (["camera.tflite", "--backend", "cpu,lpia"], "Did you mean 'lpai'?"),
        (["camera.tflite", "--set", "thread=1,2"], "Did you mean 'threads'?"),
        (["camera.tflite", "--set", "threads=one,two"], "'one' is not a number"),
        (["camera.tflite", "--set", "threads"], "must look like threads=2"),
        (["camera.tflite", "--set", "threads=1", "--set", "threads=2"], "it is given twice. Join its values"),
        (["camera.tflite", "--set", "threads=,"], "--set threads=,: has no value"),
        (["camera.tflite", "--set", "threads=1,two"], "'two' is not a number"),
        (["camera.tflite", "--mode", "device", "--backend", "htp"], "--backend htp: has no meaning for a chip"),
        (["camera.tflite", "--mode", "device", "--scratch-limit", "1"], "--scratch-limit 1: has no meaning for a chip"),
        (["camera.tflite", "--mode", "device", "--threads", "4"], "--threads 4: has no meaning for a chip"),
        (["camera.tflite", "--mode", "device", "--set", "socs=SM8750"], "Did you mean 'soc'?"),
        (["camera.tflite", "--jobs", "-1"], "--jobs -1: must not be negative"),
        (["camera.tflite", "--shard", "3/2"], "must look like 1/4"),
        (["camera.tflite", "--config", "missing.json"], "'missing.json': cannot be read"),
        (["camera.tflite", "--set", "threads=1,0"], "threads=0: the number of threads must be 1 to 64"),
        (["camera.tflite", "--threads", "65"], "threads=65: the number of threads must be 1 to 64"),
        (["camera.tflite", "--set", "threads=2,2"], "--set threads=2,2: '2' is given twice"),
        (["camera.tflite", "--backend", "cpu,libQnnCpu.so"], "--backend cpu,libQnnCpu.so: 'cpu' is given twice"),
        (["camera.tflite", "--set", "scratch-limit=1%", "--set", "scratch_limit=2%"], "scratch-limit: it is given"),
        (["camera.tflite", "--set", "scratch-limit=some"], "must be a number of bytes, a percentage like '25%', or"),
        (["camera.tflite", "--set", "slower=0.1"], "there is no scratch limit. Give a scratch limit too."),
        (["camera.tflite", "--set", "target=avx3"], "target 'avx3': must be one of avx512-amx, avx512-vnni"),
        (["camera.tflite", "--backend", "lpai", "--set", "direct-mode=adps"], "Did you mean 'adsp'?"),
        (
            ["camera.tflite", "--backend", "lpai", "--set", "tcm=4KiB,1MiB", "--tcm", "4KiB"],
            "--set tcm=1MiB: --tcm 4096 states another size. State one.",
        ),
        (["camera.tflite", "--mode", "run", "--set", "io=memhandel", "--backend", "htp"], "Did you mean 'memhandle'?"),
        (["camera.tflite", "--mode", "run", "--set", "timeout=-1"], "timeout: must be a number of seconds from"),
        (["camera.bin", "--set", "htp.precision=int3"], "'htp.precision': must be one of 'float32', 'float16'"),
        (
            ["camera.tflite", "--backend", "cpu,htp", "--set", "htp.precison=float16"],
            "on cpu configuration, key 'htp': there is no such key; known are cpu, ",
        ),
        (["camera.tflite", "--shape", "x=0"], "--shape x=0: dimensions must be positive"),
        (["camera.tflite", "--repeat", "0"], "--repeat 0: must be at least 1"),
        (["camera.tflite", "--row-timeout", "-1"], "--row-timeout: must be a number of seconds from 0.000001 to 1000"),
        (["camera.tflite", "--row-timeout", "nan"], "--row-timeout: must be a number of seconds"),
        (["camera.tflite", "--shard", "0/3"], "--shard 0/3: must look like 1/4, the first of four parts"),
        (["camera.tflite", "--mode", "device", "--set", "vtcm=99"], "VTCM of 99 MB: chip SM8750 has 8 MB"),
        (["camera.tflite", "--mode", "device", "--set", "dlbc=on,maybe"], "dlbc=on,maybe: must be one of on, off"),
        (["camera.tflite", "--mode", "device", "--set", "hvx=x"], "argument --hvx: invalid int value: 'x'"),
        (["camera.tflite", "--mode", "device", "--set", "precision=float17"], "Did you mean 'float16'?"),
        (["camera.tflite", "--csv", "missing/rows.csv"], "--csv missing/rows.csv: cannot be written: No such file"),
        (["camera.tflite", "--html", "."], "--html .: cannot be written: Is a directory"),
        (["camera.tflite", "--html", "/proc/page.html"], "--html /proc/page.html: cannot be written"),
    ],
)
def test_bad_input_is_refused_in_one_line_before_a_process_starts(folder, capsys, no_process, arguments, words) -> None:
    assert main(["sweep", *arguments, "--state", "state"]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert words in line
    assert captured.out == ""
    assert not (folder / "state").exists()


def test_sizes_of_tcm_are_rows_or_the_same_for_all(folder, capsys) -> None:
    sizes = swept(capsys, "model.tflite", "--backend", "lpai", "--set", "tcm=4KiB,1MiB", status=1)["rows"]
    assert [(row["tcm"], row["fits"]) for row in sizes] == [("4KiB", False), ("1MiB", True)]
    small, refused = swept(capsys, "model.tflite", "--backend", "lpai,cpu", "--tcm", "4KiB", status=1)["rows"]
    assert small["fits"] is False
    assert "backend 'cpu' has no TCM" in refused["problem"]


@pytest.mark.parametrize("state", ["file", "file/state", "/proc/state"])
def test_a_folder_for_results_that_cannot_be_written_is_refused(folder, capsys, no_process, state) -> None:
    (folder / "file").touch()
    assert main(["sweep", "camera.tflite", "--state", state]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert f"--state {state}: cannot be written" in line
    assert captured.out == ""


def test_a_value_that_only_some_backends_have_is_a_problem_of_the_others(folder, capsys) -> None:
    arguments = ("--backend", "cpu,htp", "--set", "htp.precision=float16")
    refused, planned = swept(capsys, "camera.tflite", *arguments, status=1)["rows"]
    assert "configuration, key 'htp': there is no such key; known are cpu, " in refused["problem"]
    assert (planned["backend"], planned["problem"]) == ("htp", "")


def test_a_damaged_model_is_a_row_with_its_reason(folder, capsys) -> None:
    (folder / "damaged.onnx").write_bytes(b"no model")
    damaged, planned = swept(capsys, "damaged.onnx", "camera.tflite", status=1)["rows"]
    assert "damaged.onnx" in damaged["problem"]
    assert planned["problem"] == ""


def test_a_part_without_rows_says_so(folder, capsys) -> None:
    assert main(["sweep", "camera.tflite", "--shard", "2/2", "--state", "state"]) == 0
    assert capsys.readouterr().out == "part 2/2 has no rows\n"


def test_the_kind_of_memory_and_its_size_are_different_columns() -> None:
    row = {"model": "m", "mode": "run", "settings": {"io": "raw"}, "io": "raw", "io_bytes": 8, "problem": ""}
    columns = columns_of([row])
    assert (columns["io"], columns["io_bytes"]) == ("io", "io bytes")
    assert len(set(columns.values())) == len(columns)
