"""A device of somebody else's: a file in a folder, and an installed package."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from .conftest import GREETER
from .process import HYPERBEAM, NodeProcess, clean_environment, serve


def make_wheel(folder: Path) -> Path:
    """A wheel as a build tool makes it: a module, its metadata, its entry point."""
    wheel = folder / "greeter-1.0-py3-none-any.whl"
    info = "greeter-1.0.dist-info"
    files = {
        "greeter.py": GREETER,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: greeter\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[hyperbeam.devices]\ngreeter@1.0 = greeter:Greeter\n",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
        archive.writestr(f"{info}/RECORD", record)
    return wheel


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder into which pip has installed the package."""
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*command, "--target", target, make_wheel(tmp_path)], check=True, timeout=120)
    return target


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A package as `hyperbeam new-device` writes it."""
    folder = tmp_path / "written"
    command = [HYPERBEAM, "new-device", "word-count", "--folder", folder]
    subprocess.run(command, check=True, timeout=60)
    return folder


def test_a_new_device_is_installed_tested_and_called(
    home: Path, written: Path, tmp_path: Path
) -> None:
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(target), str(written)]
    subprocess.run(command, check=True, timeout=120)
    environment = {"PYTHONPATH": str(target)}
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=written,
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "3 passed" in tested.stdout

    node = serve("--home", home, env=environment).listening()
    try:
        commands = re.findall(r"^curl '(\S+)'$", (written / "README.md").read_text(), re.MULTILINE)
        said = [httpx.get(node.url + command.partition("8734")[2]).text for command in commands]
        assert said == ["Hello, Ada", "HELLO"]
        assert httpx.get(node.url + "/~word-count@1.0/hello").text == "Hello, world"
        assert httpx.get(node.url + "/~word-count@1.0/shout").status_code == 400
        devices = httpx.get(
            node.url + "/~meta@1.0/devices", headers={"accept": "application/json"}
        ).json()
        assert devices["failed"] == {}
        shown = devices["devices"]["word-count@1.0"]
        assert shown["docs"] == "Greets, and says things loudly."
        assert shown["keys"]["shout"] == "`text` in capitals: `/~word-count@1.0/shout?text=hello`."
    finally:
        assert node.stop() == 0


def test_what_is_written_is_in_good_style_and_typed(written: Path) -> None:
    bin = HYPERBEAM.parent
    rules = "E,F,W,I,UP,B,C4,SIM,RUF,PTH,PIE,RET"
    for command in (
        [bin / "ruff", "check", "--isolated", "--line-length", "100", "--select", rules, "."],
        [bin / "ruff", "format", "--isolated", "--line-length", "100", "--check", "."],
        [bin / "mypy", "--strict", "src", "tests"],
    ):
        done = subprocess.run(command, cwd=written, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr


def hello(node: NodeProcess) -> str:
    return httpx.get(node.url + "/~greeter@1.0/hello&name=Ada").text


def test_a_file_in_a_folder(node: NodeProcess) -> None:
    assert hello(node) == "Hello, Ada"
    assert httpx.get(node.url + "/~greeter@1.0/hello?name=Bob").text == "Hello, Bob"
    reply = httpx.get(node.url + "/~greeter@1.0/hello", headers={"accept": "application/json"})
    assert (reply.status_code, reply.json()["error"]) == (404, "not_found")


def test_an_installed_package(home: Path, installed: Path) -> None:
    node = serve("--home", home, env={"PYTHONPATH": str(installed)}).listening()
    try:
        assert hello(node) == "Hello, Ada"
        devices = httpx.get(
            node.url + "/~meta@1.0/devices", headers={"accept": "application/json"}
        ).json()
        assert "hello" in devices["devices"]["greeter@1.0"]["keys"]
    finally:
        assert node.stop() == 0


def test_two_of_one_name_have_to_be_chosen_from(
    home: Path, installed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "devices"
    folder.mkdir()
    file = folder / "greeter.py"
    file.write_text(GREETER.replace("Hello, ", "Good day, "))
    environment = {"PYTHONPATH": str(installed)}
    node = serve("--home", home, "--device-path", folder, env=environment)
    assert node.wait() == 2
    assert len(node.lines) == 1
    assert str(file) in node.lines[0]
    assert "'greeter'" in node.lines[0]

    config = tmp_path / "hyperbeam.toml"
    config.write_text(f'device_path = ["{folder}"]\n[devices]\n"greeter@1.0" = "{file}"\n')
    node = serve("--home", home, "--config", config, env=environment).listening()
    try:
        assert hello(node) == "Good day, Ada"
    finally:
        assert node.stop() == 0


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module", "it needs the module no_such_module, which is not installed"),
        ("raise SystemExit(3)", "SystemExit: the node's log says why"),
    ],
)
def test_a_device_that_fails_to_load_is_named(
    home: Path, tmp_path: Path, source: str, reason: str
) -> None:
    file = tmp_path / "devices" / "bad.py"
    file.parent.mkdir()
    file.write_text(source)
    node = serve("--home", home, "--device-path", file.parent).listening()
    try:
        shown = httpx.get(node.url + "/~meta@1.0/devices", headers={"accept": "application/json"})
        assert shown.json()["failed"] == {"bad.py": reason}
        assert str(tmp_path) not in shown.text
        assert any(str(file) in line for line in node.lines)
    finally:
        assert node.stop() == 0
    required = serve("--home", home, "--device-path", file.parent, "--set", 'required=["bad@1.0"]')
    assert required.wait() == 2
    assert "bad@1.0" in required.lines[-1]


def test_workers_tell_the_same_of_devices_and_of_one_that_fails_in_the_supervisor(
    home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "devices" / "one.py"
    file.parent.mkdir()
    file.write_text(
        "from hyperbeam import Device\n\n\nclass One(Device):\n    name = 'one@1.0'\n"
        "    single = True\n\n    async def start(self):\n        raise OSError('/a/secret')\n"
    )
    node = serve("--home", home, "--device-path", file.parent, "--workers", "2").listening()
    try:
        url = node.url + "/~meta@1.0/devices"
        shown = [httpx.get(url, headers={"accept": "application/json"}) for _ in range(8)]
        assert len({one.content for one in shown}) == 1
        assert shown[0].json()["failed"] == {"one@1.0": "OSError: the node's log says why"}
        assert "generate" in shown[0].json()["devices"]["snp@1.0"]["keys"]
    finally:
        assert node.stop() == 0
    assert any("/a/secret" in line for line in node.lines)


def test_a_device_that_raises_gives_500_with_an_id_that_the_log_has(
    home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "devices" / "faulty.py"
    file.parent.mkdir()
    file.write_text(
        "from hyperbeam import Device, key\n\n\nclass Faulty(Device):\n    name = 'faulty@1.0'\n\n"
        "    @key\n    def fail(self, base, request):\n        raise RuntimeError('a secret')\n"
    )
    node = serve("--home", home, "--device-path", file.parent).listening()
    try:
        reply = httpx.get(node.url + "/~faulty@1.0/fail", headers={"accept": "application/json"})
        assert reply.status_code == 500
        assert "secret" not in reply.text
        assert "Traceback" not in reply.text
        (number,) = re.findall(r"\b[0-9a-f]{16}\b", reply.json()["body"])
        node.wait_for(number)
        assert httpx.get(node.url + "/~meta@1.0/live").status_code == 200
    finally:
        assert node.stop() == 0
