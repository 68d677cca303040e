"""Compiled kernels are cached by their sources and target; what is stale or damaged is rebuilt, never trusted."""

import ast
import errno
import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from enum import IntEnum
from pathlib import Path

import pytest
from support import tiny
from support.processes import stop
from support.suites import long
from support.waiting import PATIENCE, eventually

from isthmus.compiled import children
from isthmus.engine.native import cache, control, doorbell, loader, program, signatures, words
from isthmus.engine.native.target import TARGETS, by_name, host
from isthmus.errors import QnnError

KERNEL = "executor:stop"


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(loader, "_addresses", {})
    monkeypatch.setattr(children, "_in_memory", {})
    monkeypatch.setattr(children, "_reported", set())
    return tmp_path / "cache"


def test_a_kernel_is_compiled_once_and_found_again(empty_cache, capfd) -> None:
    assert cache.read(KERNEL, host()) is None
    loader.objects([KERNEL], host())
    assert "compiling 1 kernel for" in capfd.readouterr().err
    code = cache.read(KERNEL, host())
    assert code is not None
    assert code.startswith(b"\x7fELF")


def test_absent_kernels_are_compiled_in_the_order_of_use(empty_cache, monkeypatch) -> None:
    asked = []

    def compile_absent(kernels, target):
        asked.extend(kernels)
        return dict.fromkeys(kernels, b"")

    monkeypatch.setattr(loader, "compile_absent", compile_absent)
    used = ["softmax:f32", "executor:stop", "binary:add", "softmax:f32"]
    assert list(loader.objects(used, host())) == used[:3]
    assert asked == used[:3]


@pytest.mark.parametrize("damage", ["flip", *map(long, ("cut", "empty", "foreign header"))])
def test_damaged_code_is_not_trusted_and_rebuilt(empty_cache, damage) -> None:
    loader.objects([KERNEL], host())
    file = cache.path(KERNEL, host())
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[-20] ^= 1
    elif damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "empty":
        content = bytearray()
    else:
        content[:8] = b"SOMEONES"
    file.write_bytes(content)
    assert cache.read(KERNEL, host()) is None
    assert loader._objects([KERNEL], host())[KERNEL].startswith(b"\x7fELF")


def test_code_that_others_may_write_is_refused(empty_cache) -> None:
    loader.objects([KERNEL], host())
    os.chmod(cache.path(KERNEL, host()), 0o666)
    with pytest.raises(QnnError, match="can be written by others"):
        loader.addresses([KERNEL], host())


def test_a_folder_that_others_may_write_is_refused(empty_cache) -> None:
    empty_cache.mkdir()
    os.chmod(empty_cache, 0o777)
    with pytest.raises(QnnError, match="chmod go-w"):
        loader.addresses([KERNEL], host())
    assert os.listdir(empty_cache) == []


def test_everything_that_kernels_import_is_in_their_keys() -> None:
    # Machine and signature are in a key by themselves, layouts of shared memory by their values; the rest computes
    # nothing that is compiled.
    otherwise = {
        "isthmus.engine.native.target", "isthmus.engine.native.words", "isthmus.engine.native.callback",
        "isthmus.engine.native.doorbell", "isthmus.engine.native.program", "isthmus.compiled.objects", "isthmus.errors",
    }  # fmt: skip
    folders = ("isthmus.engine.native.kernels", "isthmus.engine.native.signatures")
    engine = "isthmus.engine.native"
    imported = {
        f"{engine}.{name.name}" if node.module == engine else str(node.module)
        for file in cache._KERNELS.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("isthmus.")
        for name in node.names
    }
    assert {name for name in imported if not name.startswith(folders)} == otherwise | set(cache._OTHERS)
    assert all((cache._KERNELS / f"{name}.py").exists() for name in cache._OTHERS.values())


def test_the_key_changes_with_kernel_target_and_sources(monkeypatch) -> None:
    keys = {cache.key(kernel, target) for kernel in ("executor:run", "executor:work") for target in TARGETS}
    assert len(keys) == 2 * len(TARGETS)
    before = cache.key(KERNEL, host())
    real = cache._file_hash
    monkeypatch.setattr(cache, "_file_hash", lambda p: b"changed" if p.name == "base.py" else real(p))
    assert cache.key(KERNEL, host()) != before, "a module that the kernel imports counts too"


def test_a_kernel_module_counts_as_a_source_however_it_is_imported(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(cache, "_KERNELS", tmp_path)
    (tmp_path / "outer.py").write_text("from isthmus.engine.native.kernels import inner, near as other\n")
    (tmp_path / "inner.py").write_text("from isthmus.engine.native.kernels.deep import something\n")
    (tmp_path / "near.py").write_text("from isthmus.errors import Code\n")
    (tmp_path / "deep.py").write_text(
        "from isthmus.compiled.instructions import system_call\nfrom isthmus.engine.native import control as layout\n"
    )
    sources = {"outer", "inner", "near", "deep", "../../../compiled/instructions", "../control"}
    assert cache._sources("outer") == sources


@pytest.mark.parametrize("kernel", ["executor:run", "doorbell:serve"])
def test_the_key_changes_with_instructions_that_other_rooms_have_too(monkeypatch, kernel) -> None:
    before, plain = cache.key(kernel, host()), cache.key("movement:copy.4", host())
    real = cache._file_hash
    monkeypatch.setattr(cache, "_file_hash", lambda p: b"changed" if p.name == "instructions.py" else real(p))
    assert cache.key(kernel, host()) != before
    assert cache.key("movement:copy.4", host()) == plain, "a kernel that has none of them"


@pytest.mark.parametrize(
    ("owner", "name", "kernel"),
    [
        (program, "OPERAND_BITS", "movement:copy.4"),
        (control, "TICKET", "executor:run"),
        (doorbell, "RESPONSE", "doorbell:serve"),
    ],
)
def test_the_key_changes_with_layouts_of_memory(monkeypatch, owner, name, kernel) -> None:
    before = cache.key(kernel, host())
    monkeypatch.setattr(words if name == "OPERAND_BITS" else owner, name, getattr(owner, name) + 8)
    assert cache.key(kernel, host()) != before


@pytest.mark.parametrize(("owner", "name"), [(words, "Pool"), (cache, "Code")])
def test_the_key_changes_with_numbers_that_kernels_share_with_others(monkeypatch, owner, name) -> None:
    before = cache.key(KERNEL, host())
    numbers = {member.name: int(member) + 1 for member in getattr(owner, name)}
    monkeypatch.setattr(owner, name, IntEnum(name, numbers))
    assert cache.key(KERNEL, host()) != before


def test_the_key_changes_with_the_words_of_the_kernel_and_of_no_other(monkeypatch) -> None:
    kernel, other = "movement:fill.4", "movement:copy.4"
    before = cache.key(kernel, host()), cache.key(other, host())
    declared = signatures.KERNELS[kernel]
    first, second, *rest = declared.words
    monkeypatch.setitem(signatures.KERNELS, kernel, replace(declared, words=(second, first, *rest)))
    assert cache.key(kernel, host()) != before[0]
    assert cache.key(other, host()) == before[1]


@pytest.mark.parametrize("change", [{"vector_bytes": 8}, {"dot": "other"}])
def test_the_key_changes_with_what_a_target_says_of_vectors(change) -> None:
    assert cache.key(KERNEL, replace(host(), **change)) != cache.key(KERNEL, host())


def test_a_cache_folder_that_cannot_be_made_is_named(empty_cache, tmp_path, monkeypatch, capfd) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(blocker / "cache"))
    loader.objects([KERNEL], host())
    assert "Set ISTHMUS_CACHE_DIR to a folder that can be written." in capfd.readouterr().err


def test_without_a_home_folder_the_variable_to_set_is_named(empty_cache, monkeypatch, capfd) -> None:
    for name in ("ISTHMUS_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_entry(uid):
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", no_entry)
    loader.objects([KERNEL], host())
    assert "no home folder to keep it in. Set ISTHMUS_CACHE_DIR" in capfd.readouterr().err


def test_where_nothing_can_be_kept_kernels_are_compiled_for_this_process(empty_cache, monkeypatch, capfd) -> None:
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", "/proc/nowhere")
    code = loader.objects([KERNEL], host())[KERNEL]
    said = capfd.readouterr().err
    assert "cache of compiled code /proc/nowhere: cannot be written: No such file or directory" in said
    assert "Code is compiled only for this process." in said
    assert loader.objects([KERNEL], host())[KERNEL] == code
    assert capfd.readouterr().err == ""


def test_a_cache_without_permission_is_reported_and_a_readable_one_is_used(empty_cache, monkeypatch, capfd) -> None:
    kept = loader.objects([KERNEL], host())

    def denied(*arguments, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", denied)
    capfd.readouterr()
    assert loader.objects([KERNEL], host()) == kept
    assert capfd.readouterr().err == ""
    loader.objects(["doorbell:hang_up"], host())
    assert "cannot be written: Permission denied. Set ISTHMUS_CACHE_DIR" in capfd.readouterr().err


FULL_DISK = (
    "import resource, signal, sys, isthmus; sys.dont_write_bytecode = True\n"
    "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))\n"
    "for _ in range(2):\n"
    "    with isthmus.Session(sys.argv[1], backend='cpu') as session:\n"
    "        session.run()\n"
)


def test_a_model_runs_where_the_disk_of_the_cache_is_full(empty_cache, tmp_path) -> None:
    """A limit on the size of files stands for the disk: the system refuses in the middle of the write."""
    model = tiny.gate(tmp_path / "gate.onnx", 8)
    command = [sys.executable, "-B", "-c", FULL_DISK, str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot be written: File too large") == 1
    assert os.listdir(empty_cache) == []


@pytest.mark.parametrize("shortage", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_process_short_of_descriptors_or_memory_gets_an_error_that_says_so(
    empty_cache, monkeypatch, capfd, shortage
) -> None:
    def short(*arguments, **options):
        raise OSError(shortage, os.strerror(shortage))

    monkeypatch.setattr(Path, "mkdir", short)
    with pytest.raises(QnnError, match=rf"cannot be written: {os.strerror(shortage)}\. Raise the limit"):
        loader.objects([KERNEL], host())
    assert "for this process" not in capfd.readouterr().err


def test_a_compiler_that_fails_is_reported_with_its_words(empty_cache) -> None:
    with pytest.raises(QnnError, match="nonsense"):
        loader.objects(["executor:nonsense"], host())


def test_running_cached_kernels_loads_no_numba(empty_cache) -> None:
    script = (
        "import sys; from isthmus.engine.native import loader; from isthmus.engine.native.target import host\n"
        f"loader.addresses(['{KERNEL}'], host())\n"
        "assert 'numba' not in sys.modules, 'numba was loaded'"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ})


def test_modules_in_the_working_folder_do_not_reach_the_compiler(empty_cache, tmp_path, monkeypatch) -> None:
    poisoned = tmp_path / "poisoned"
    poisoned.mkdir()
    for name in ("numpy", "llvmlite", "numba", "isthmus", "sitecustomize", "usercustomize"):
        (poisoned / f"{name}.py").write_text(f"open({str(tmp_path / f'{name}.ran')!r}, 'w').close()\n")
    (poisoned / ".numba_config.yaml").write_text("disable_jit: 1\n")
    monkeypatch.chdir(poisoned)
    for variable in ("PYTHONPATH", "PYTHONHOME"):
        monkeypatch.setenv(variable, str(poisoned))
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    loader.objects([KERNEL], host())
    assert cache.read(KERNEL, host()) is not None
    assert list(tmp_path.glob("*.ran")) == []


KERNELS = ("executor:stop", "quantized_elementwise:lookup", "doorbell:hang_up")
LOAD = (
    "import sys; from isthmus.engine.native import loader; from isthmus.engine.native.target import host\n"
    "from isthmus.compiled.folder import Folder; write = Folder.write\n"
    "Folder.write = lambda self, *a: (print(a[0].partition('-')[0]), write(self, *a))\n"
    "{before}\n"
    f"loader.addresses({KERNELS}, host())"
)
WITHOUT_LOCKS = "import fcntl; fcntl.flock = lambda *_: None"


@pytest.mark.parametrize(
    ("before", "compilations"), [pytest.param("", 1, id="locks"), long(WITHOUT_LOCKS, 2, id="no locks")]
)
def test_processes_that_need_the_same_kernels_at_once_share_the_work(empty_cache, before, compilations) -> None:
    command = [sys.executable, "-c", LOAD.format(before=before)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    written = "".join(out for out, _ in said).split()
    assert len(set(written)) == len(KERNELS)
    assert len(written) <= compilations * len(KERNELS), "none was compiled twice"
    assert sorted(os.listdir(empty_cache)) == sorted(cache.file_name(kernel, host()) for kernel in KERNELS)


def test_compilers_end_with_the_process_that_started_them(empty_cache) -> None:
    # So many kernels that compiling goes on for long after the first is in the cache.
    kernels = list(signatures.KERNELS)[:100]
    load = LOAD.format(before="").replace(repr(KERNELS), repr(kernels))
    script = "import os; os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])\n" + load
    client = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    # A compiler that is stopped after the first kernel would never end by itself.
    assert eventually(lambda: list(empty_cache.glob("*.o")))
    [server] = _children(client.pid)
    [worker] = _children(server)
    handles = [os.pidfd_open(process) for process in (server, worker)]
    # Even one that does nothing any more.
    stop(worker)
    assert len(list(empty_cache.glob("*.o"))) < len(kernels)
    client.kill()
    client.wait()
    for handle in handles:
        ended, _, _ = select.select([handle], [], [], PATIENCE)
        if not ended:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
        assert ended


def _children(process):
    """The processes that a process has started, whichever of its threads has."""
    return [
        int(child)
        for task in Path(f"/proc/{process}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def test_an_unknown_target_is_refused_with_the_known_ones() -> None:
    with pytest.raises(QnnError, match=r"avx2.*portable"):
        by_name("z80")
