"""``isthmus sweep --scheduler`` on a real cluster of dask.distributed: a scheduler and two workers of this machine."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from support.processes import children
from support.waiting import PATIENCE, eventually

from isthmus.tools.cli import main

dask = pytest.importorskip("dask", reason="needs the package distributed, of the extra 'farm'")
distributed = pytest.importorskip("distributed", reason="needs the package distributed, of the extra 'farm'")

ARGUMENTS = ("camera.tflite", "model.tflite", "--set", "threads=1,2")
ENDLESS = ("camera.tflite", "--mode", "run", "--repeat", "100000000", "--set", "threads=1,2")
"""Two rows, one for each worker, which take hours."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=str(folder)
    ) as found:
        yield found


@pytest.fixture
def folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["samples", "."]) == 0
    capsys.readouterr()
    return tmp_path


@contextmanager
def endless(cluster):
    """A sweep whose two rows are being computed; it, and the two processes of the workers."""
    command = [sys.executable, "-m", "isthmus.tools.cli", "sweep", *ENDLESS, "--state", "state"]
    running = subprocess.Popen(
        [*command, "--scheduler", cluster.scheduler_address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert eventually(lambda: len(computing(cluster)) == 2)
        yield running
    finally:
        running.kill()
        running.communicate()


def computing(cluster):
    """The processes that the workers have started."""
    workers = [nanny.pid for nanny in cluster.workers.values() if nanny.pid]
    return [child for worker in workers for child in children(worker) if is_row(child)]


def is_row(process):
    try:
        with open(f"/proc/{process}/cmdline") as stream:
            return "isthmus.tools.sweep_process" in stream.read()
    except OSError:
        return False


def test_the_workers_of_a_cluster_compute_the_rows(folder, capsys, cluster) -> None:
    assert main(["sweep", *ARGUMENTS, "--state", "here", "--json"]) == 0
    here = capsys.readouterr().out
    assert main(["sweep", *ARGUMENTS, "--state", "there", "--json", "--scheduler", cluster.scheduler_address]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == json.loads(here)
    assert captured.err == ""
    assert len(list((folder / "there").iterdir())) == 4


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_the_workers_end_what_a_sweep_no_longer_wants(folder, cluster, by) -> None:
    with endless(cluster) as running:
        running.send_signal(by)
        printed = running.communicate(timeout=PATIENCE)[1].splitlines()
    if by == signal.SIGINT:
        assert running.returncode == 130
        assert printed == ["0 of 2 are finished; the same command continues", "isthmus: interrupted"]
    assert eventually(lambda: not computing(cluster))


def test_the_row_of_a_worker_that_dies_is_computed_by_another(folder, cluster) -> None:
    with endless(cluster) as running:
        first, second = computing(cluster)
        os.kill(int(next(iter(cluster.workers.values())).pid), signal.SIGKILL)
        assert eventually(lambda: len(computing(cluster)) == 2 and {first, second} != set(computing(cluster)))
        assert running.poll() is None
    assert eventually(lambda: not computing(cluster))


def test_a_cluster_without_workers_or_without_a_scheduler_is_refused(folder, capsys, monkeypatch) -> None:
    monkeypatch.setattr("isthmus.system.jobs._PATIENCE", 0.1)
    with distributed.LocalCluster(n_workers=0, dashboard_address=None) as empty:
        address = empty.scheduler_address
        assert main(["sweep", "camera.tflite", "--state", "state", "--scheduler", address]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert f"--scheduler {address}: it has had no worker for 0.1 s. Start one with: dask worker {address}" in line
    assert captured.out == ""
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        assert main(["sweep", "camera.tflite", "--state", "state", "--scheduler", address]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--scheduler {address}: it does not answer" in line
