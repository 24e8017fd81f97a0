from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam import ConfigError
from hyperbeam.config import Config, convert, load


def write(folder: Path, text: str) -> Path:
    file = folder / "hyperbeam.toml"
    file.write_text(text)
    return file


def test_defaults() -> None:
    config = load(environment={})
    assert (config.http.host, config.http.port) == ("127.0.0.1", 8734)
    assert config.sections == {}


def test_flags_beat_environment_beats_file_beats_profile(tmp_path: Path) -> None:
    file = write(
        tmp_path, 'profile = "inference"\n[http]\nport = 1\nhost = "::1"\n[inference]\nslots = 2\n'
    )
    environment = {"HB_HTTP_PORT": "2", "HB_HTTP_BODY_LIMIT": "99"}
    config = load(file, flags={"http.port": 3}, environment=environment)
    assert config.http.port == 3
    assert config.http.body_limit == 99
    assert config.http.host == "::1"
    assert config.sections["inference"] == {"backend": "llama", "slots": 2}

    config = load(file, environment=environment)
    assert config.http.port == 2

    config = load(file, environment={"HB_INFERENCE_BACKEND": "none"})
    assert config.http.port == 1
    assert config.sections["inference"]["backend"] == "none"


def test_a_section_with_an_underscore_is_named_by_two(tmp_path: Path) -> None:
    config = load(environment={"HB_SEV_GPU__BACKEND": "none", "HB_SEV_GPU__TIME_LIMIT": "3"})
    assert config.sections == {"sev_gpu": {"backend": "none", "time_limit": "3"}}


def test_environment_lists_and_topics(tmp_path: Path) -> None:
    environment = {"HB_PRINT": "http, inference,", "HB_DEVICE_PATH": f"{tmp_path}:/other"}
    config = load(environment=environment)
    assert config.print == ("http", "inference")
    assert config.device_path == (str(tmp_path), "/other")


def test_lists_are_written_the_same_in_flags_and_environment() -> None:
    environment = {"HB_REQUIRED": "a@1.0, b@1.0", "HB_HTTP_HOSTS": "a,b"}
    flags = {"print": "http,node", "device_path": "/a:/b"}
    config = load(environment=environment, flags=flags)
    assert config.required == ("a@1.0", "b@1.0")
    assert config.http.hosts == ("a", "b")
    assert config.print == ("http", "node")
    assert config.device_path == ("/a", "/b")


def test_file_named_by_environment(tmp_path: Path) -> None:
    file = write(tmp_path, "[http]\nport = 7\n")
    assert load(environment={"HB_CONFIG": str(file)}).http.port == 7


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("port = 1", ["port", "unknown setting"]),
        ("[http]\nprot = 1", ["prot", "http"]),
        ("[http]\nport = 70000", ["port", "65535"]),
        ('[http]\nport = "x"', ["port"]),
        ('[store]\nkind = "disk"', ["kind"]),
        ("[http\n", ["line 1"]),
        ("print = []\nprint = []", ["overwrite"]),
        ('profile = "none-such"', ["none-such", "inference"]),
        ("[http]\nheader_timeout = -1", ["header_timeout"]),
        ('[http]\nhost = ""', ["host"]),
        ("[receipts]\nkeep = 99999999999999999999", ["keep", "1000000000"]),
        ("[receipts]\ndays = 99999999999999999999", ["days", "36500"]),
        ("[receipts]\nkeep = 1000000001", ["keep", "1000000000"]),
        ("[receipts]\ndays = 36501", ["days", "36500"]),
    ],
)
def test_what_is_wrong_is_named_with_its_file(tmp_path: Path, text: str, names: list[str]) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        load(file, environment={})
    assert "\n" not in refused.value.detail
    for name in names:
        assert name in refused.value.detail
    if "none-such" not in text:
        assert str(file) in refused.value.detail


def test_missing_file_and_unknown_variable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such configuration file"):
        load(tmp_path / "absent.toml", environment={})
    with pytest.raises(ConfigError, match="HB_NOSUCH"):
        load(environment={"HB_NOSUCH": "1"})


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=12), max_size=4))
def test_any_environment_gives_a_config_or_a_refusal(variables: dict[str, str]) -> None:
    environment = {f"HB_{name}": value for name, value in variables.items()}
    try:
        assert isinstance(load(environment=environment), Config)
    except ConfigError as refused:
        assert refused.detail


@given(st.binary(max_size=200))
def test_any_file_gives_a_config_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    file = tmp_path_factory.mktemp("config") / "hyperbeam.toml"
    file.write_bytes(data)
    try:
        assert isinstance(load(file, environment={}), Config)
    except ConfigError as refused:
        assert str(file) in refused.detail


def test_the_layer_at_fault_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, "[http]\nport = 1\n")
    for arguments in ({"environment": {"HB_HTTP_PORT": "x"}}, {"flags": {"http.port": "x"}}):
        with pytest.raises(ConfigError, match=r"HB_.*flag.*http\.port"):
            load(file, **{"environment": {}, **arguments})


class Lists(msgspec.Struct, forbid_unknown_fields=True):
    numbers: tuple[int, ...] = ()
    names: list[str] = []
    text: str = ""


def test_a_devices_lists_are_written_by_comma_too() -> None:
    found = convert({"numbers": "0, 1,", "names": "a,b", "text": "a,b"}, Lists, "here")
    assert found == Lists(numbers=(0, 1), names=["a", "b"], text="a,b")
    assert convert({"numbers": [2], "names": []}, Lists, "here").numbers == (2,)
    with pytest.raises(ConfigError, match=r"here: .*numbers"):
        convert({"numbers": "0,x"}, Lists, "here")


def test_the_environment_names_a_section_with_a_dash(tmp_path: Path) -> None:
    file = write(tmp_path, "[receipt-log]\ngather = 1\n")
    environment = {"HB_RECEIPT_LOG__GATHER": "2"}
    assert load(file, environment=environment).sections == {"receipt-log": {"gather": "2"}}
    flags = {"receipt-log.gather": "3"}
    found = load(environment=environment, flags=flags).sections
    assert found == {"receipt-log": {"gather": "3"}}
