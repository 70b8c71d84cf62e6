"""The worker of the driver java: found, compiled once, and kept."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.lab import java_
from headrace.lab.protocol import Failed, decode
from headrace.lab.worker.drivers import DriverError
from tests.kafka import java


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(java_.CLASSPATH_VARIABLE, java.classpath())
    return tmp_path / "headrace"


@pytest.mark.slow
@pytest.mark.kafka
def test_it_is_compiled_once(cache):
    with ThreadPoolExecutor() as both:
        one, other = both.map(lambda _: java_.command(), range(2))
    assert one == other
    [folder] = cache.iterdir()
    made = (folder / "lab" / "LabWorker.class").stat()
    command = java_.command()
    assert command == one
    assert command[command.index("-cp") + 1].split(os.pathsep)[0] == str(folder)
    assert (folder / "lab" / "LabWorker.class").stat() == made
    # It runs, and says what is wrong with a line as any worker does.
    done = subprocess.run(command, input=b"nonsense\n", capture_output=True, timeout=60, check=False)
    assert isinstance(decode(done.stdout.splitlines()[0]), Failed)


@pytest.mark.slow
@pytest.mark.kafka
def test_other_classes_are_another_worker(cache, monkeypatch):
    monkeypatch.setattr(java_, "_compile", lambda *given: given[-1].mkdir())
    java_.command()
    monkeypatch.setenv(java_.CLASSPATH_VARIABLE, f"{java.classpath()}{os.pathsep}more.jar")
    java_.command()
    assert len(list(cache.iterdir())) == 2


@pytest.mark.slow
def test_what_is_missing_is_named(cache, monkeypatch):
    monkeypatch.setenv(java_.CLASSPATH_VARIABLE, "no-such.jar")
    with pytest.raises(DriverError, match=r"does not compile the worker: .*: error: "):
        java_.command()
    assert list(cache.iterdir()) == []
    cache.rmdir()
    cache.write_text("no folder")
    with pytest.raises(DriverError, match=f"is kept in {cache}: "):
        java_.command()
    monkeypatch.setenv("JAVA_HOME", str(Path(cache).parent))
    with pytest.raises(DriverError, match="needs a JDK 17 or newer"):
        java_.command()
