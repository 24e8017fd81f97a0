from pathlib import Path

import pytest

from hyperbeam import Unavailable
from hyperbeam.routing.auth import Credentials


def test_a_variable_is_read_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = Credentials()
    monkeypatch.delenv("BACKEND_KEY", raising=False)
    with pytest.raises(Unavailable) as caught:
        credentials.authorization("env:BACKEND_KEY", {})
    assert caught.value.error == "no_credential"
    assert "BACKEND_KEY" not in caught.value.detail
    monkeypatch.setenv("BACKEND_KEY", "sk-1\n")
    assert credentials.authorization("env:BACKEND_KEY", {}) == "Bearer sk-1"
    monkeypatch.setenv("BACKEND_KEY", "Basic abc")
    assert credentials.authorization("env:BACKEND_KEY", {}) == "Basic abc"


def test_a_file_is_read_again_when_it_has_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    credentials = Credentials()
    path = tmp_path / "key"
    for _ in range(2):
        with pytest.raises(Unavailable):
            credentials.authorization(f"file:{path}", {})
    assert len(caplog.records) == 1
    path.write_text("one\n")
    assert credentials.authorization(f"file:{path}", {}) == "Bearer one"
    other = tmp_path / "other"
    other.write_text("two\n")
    other.replace(path)
    assert credentials.authorization(f"file:{path}", {}) == "Bearer two"
    path.write_text("")
    with pytest.raises(Unavailable):
        credentials.authorization(f"file:{path}", {})


def test_the_clients_own_is_passed_on() -> None:
    credentials = Credentials()
    request = {"priv": {"headers": {"authorization": "Bearer mine"}}}
    assert credentials.authorization("forward", request) == "Bearer mine"
    assert credentials.authorization("forward", {"priv": {"headers": {}}}) == ""
