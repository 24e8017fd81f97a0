import hashlib
import io
import os
from pathlib import Path

import pytest
import rfc8785

from hyperbeam.models.manifest import Changed, ModelFiles, gguf_files

WEIGHTS = b"GGUF" + bytes(100)
TEMPLATE = b"{{ messages }}"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    weights, template = tmp_path / "model.gguf", tmp_path / "chat.jinja"
    weights.write_bytes(WEIGHTS)
    template.write_bytes(TEMPLATE)
    return {"weights": weights, "template": template}


def test_the_digest_is_over_a_sorted_list_of_all_files(files: dict[str, Path]) -> None:
    opened = ModelFiles(files)
    opened.opening()
    manifest = opened.hash()
    listed = [
        {"name": "template", "sha256": hashlib.sha256(TEMPLATE).hexdigest(), "size": 14},
        {"name": "weights", "sha256": hashlib.sha256(WEIGHTS).hexdigest(), "size": 104},
    ]
    assert [file.as_dict() for file in manifest.files] == listed
    text = rfc8785.dumps({"v": "hyperbeam.model/1", "files": listed})
    assert manifest.sha256 == hashlib.sha256(text).hexdigest()
    assert manifest.size == 118
    assert opened.changed() == ""


def test_a_moved_file_keeps_its_digest(files: dict[str, Path], tmp_path: Path) -> None:
    opened = ModelFiles(files)
    opened.opening()
    moved = {"weights": files["weights"].rename(tmp_path / "b.gguf"), "template": files["template"]}
    again = ModelFiles(moved)
    again.opening()
    assert again.hash() == opened_hash(moved)
    assert "model.gguf" in opened.changed()


def opened_hash(files: dict[str, Path]):
    opened = ModelFiles(files)
    opened.opening()
    return opened.hash()


def swap(path: Path, content: bytes) -> None:
    """Other content of the same size under the same name and the same time of change."""
    times = path.stat()
    other = path.with_name("other")
    other.write_bytes(content)
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(path)


def rewrite(path: Path, content: bytes) -> None:
    """The same inode with other content, its time of change set back."""
    times = path.stat()
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("change", [swap, rewrite])
@pytest.mark.parametrize(("name", "content"), [("weights", WEIGHTS), ("template", TEMPLATE)])
@pytest.mark.parametrize("hashed", [False, True])
def test_a_swapped_file_is_noticed(files, change, name, content, hashed) -> None:
    opened = ModelFiles(files)
    opened.opening()
    before = opened.hash() if hashed else None
    change(files[name], content[:-1] + b"!")
    assert files[name].name in opened.changed()
    with pytest.raises(Changed, match=files[name].name):
        opened.hash()
    opened.opening()
    assert opened.changed() == ""
    assert opened.hash() != before


def test_a_file_is_read_once(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    opened = ModelFiles(files)
    opened.opening()
    first = opened.hash()
    monkeypatch.setattr(ModelFiles, "_read", None)
    opened.opening()
    assert opened.hash() == first


def test_reading_ends_when_the_files_are_closed(files: dict[str, Path]) -> None:
    opened = ModelFiles(files)
    opened.opening()

    class Closing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            opened.close()
            return super().read(size)

    with pytest.raises(Changed):
        opened._read(Closing(WEIGHTS), opened._opened)


def test_a_file_that_goes_is_noticed(files: dict[str, Path]) -> None:
    opened = ModelFiles(files)
    opened.opening()
    files["template"].unlink()
    assert "chat.jinja" in opened.changed()
    with pytest.raises(FileNotFoundError):
        opened.hash()
    with pytest.raises(FileNotFoundError):
        opened.opening()


def test_before_anything_was_opened_nothing_is_known(files: dict[str, Path]) -> None:
    opened = ModelFiles(files)
    assert opened.changed()
    with pytest.raises(Changed):
        opened.hash()


def test_all_parts_of_a_split_model_count() -> None:
    path = Path("/m/big-q4-00001-of-00003.gguf")
    assert gguf_files(path) == {
        f"weights/0000{n}": Path(f"/m/big-q4-0000{n}-of-00003.gguf") for n in (1, 2, 3)
    }
    assert gguf_files(Path("/m/a.gguf")) == {"weights": Path("/m/a.gguf")}
