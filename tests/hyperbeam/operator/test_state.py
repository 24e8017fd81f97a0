"""What a node remembers of its operator."""

from pathlib import Path

import pytest

from hyperbeam.errors import ConfigError, HyperbeamError
from hyperbeam.operator import state

KEPT = state.State("a" * 43, True, {"print": []}, [{"time": 1, "keys": {}}], {"f" * 64: 2})


def test_what_is_kept_is_read_again_by_this_user_alone(tmp_path: Path) -> None:
    assert state.load(tmp_path) == state.State()
    state.save(tmp_path, KEPT)
    assert state.load(tmp_path) == KEPT
    assert (tmp_path / state.FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"nonces": {"a": "x"}}', '{"permanent": 1}', "\xff"]
)
def test_a_file_that_cannot_be_read_is_no_empty_one(tmp_path: Path, text: str) -> None:
    (tmp_path / state.FILE).write_text(text)
    with pytest.raises(ConfigError, match=state.FILE):
        state.load(tmp_path)


def test_a_folder_that_takes_nothing(tmp_path: Path) -> None:
    state.save(tmp_path, KEPT)
    (tmp_path / f"{state.FILE}.new").mkdir()  # in the way of the next one
    with pytest.raises(HyperbeamError, match="nothing was changed") as caught:
        state.save(tmp_path, state.State())
    assert caught.value.status == 507
    assert str(tmp_path) not in caught.value.detail
    assert state.load(tmp_path) == KEPT
