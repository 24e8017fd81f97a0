"""`hyperbeam serve`: start a node and keep it until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import uvloop

from hyperbeam import config as configuration
from hyperbeam.cli.ending import Ending, left_behind
from hyperbeam.config import Config
from hyperbeam.device import Device
from hyperbeam.errors import ConfigError
from hyperbeam.faults import contained
from hyperbeam.observe import logging as log_output
from hyperbeam.operator import with_orders

if TYPE_CHECKING:
    from hyperbeam.serve.single import Single
    from hyperbeam.serve.supervisor import Supervisor

log = logging.getLogger("hyperbeam.node")


@click.command()
@click.option("--config", "file", type=click.Path(), help="The configuration file.")
@click.option("--home", type=click.Path(), help="Where the node keeps what is its own.")
@click.option("--profile", help="A set of defaults; `inference` starts the embedded model.")
@click.option("--host", help="The address to listen on; 127.0.0.1 if nothing is said.")
@click.option("--port", type=int, help="The port to listen on; 8734 if nothing is said.")
@click.option("--workers", type=int, help="Processes that answer requests; 1 if nothing is said.")
@click.option("--model", help="Model name, path of a .gguf file, or hub id.")
@click.option("--routes", type=click.Path(), help="The route table.")
@click.option("--device-path", multiple=True, type=click.Path(), help="A folder of devices.")
@click.option("--print", "print_", help="Log topics to show in full, by comma.")
@click.option("--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Any setting.")
def serve(
    file: str | None,
    home: str | None,
    profile: str | None,
    host: str | None,
    port: int | None,
    workers: int | None,
    model: str | None,
    routes: str | None,
    device_path: tuple[str, ...],
    print_: str | None,
    settings: tuple[str, ...],
) -> None:
    """Start a node and keep it until Ctrl-C or SIGTERM. SIGHUP reads the settings anew."""
    flags: dict[str, Any] = {
        "home": home,
        "profile": profile,
        "http.host": host,
        "http.port": port,
        "workers": workers,
        "inference.model": model,
        "routes": routes,
        "device_path": list(device_path) or None,
        "print": print_,
    }
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {setting}: write it as SECTION.KEY=VALUE")
        flags[name.strip()] = value.strip()

    def reread() -> Config:
        return with_orders(configuration.load(file, flags=flags))

    config = reread()
    log_output.setup(config.print, config.log)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(config, reread))
        with left_behind():
            runner.close()


def _service(config: Config, reread: Callable[[], Config]) -> Single | Supervisor:
    if config.workers > 1:
        from hyperbeam.serve.supervisor import Supervisor

        return Supervisor(config, reread)
    from hyperbeam.serve.single import Single

    return Single(config, reread)


async def _run(config: Config, reread: Callable[[], Config]) -> None:
    loop = asyncio.get_running_loop()
    # Keys that are not async wait in these; they are made as they are needed.
    loop.set_default_executor(ThreadPoolExecutor(64, "key"))
    service = _service(config, reread)
    node = service.node
    ending, reload = Ending(service.kill), asyncio.Event()
    had_terminal = _has_terminal()

    def on_hangup() -> None:
        # A terminal that closes sends this too, and then there is nobody left to serve for.
        if had_terminal and not _has_terminal():
            ending.ask()
        else:
            reload.set()

    ending.listen()
    # `nohup` has HUP ignored, and so it stays.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, on_hangup)
    if not await _starts(service, ending):
        _say("stopped")
        return
    http = config.http
    base = f"http://{_url_host(http.host)}:{node.server.port}"
    _say(f"hyperbeam listens on {base}")
    _say(f"  routes  {node.routes.source}")
    _say(f"  home    {_shown(node.home)}")
    if config.workers > 1:
        _say(f"  workers {config.workers}")
    if token := node.operator.token:
        _say(f"  claim   hyperbeam operator claim {base} --token {token} --key FILE")
    beside = [
        asyncio.create_task(_announce(list(node.devices.values()), base)),
        asyncio.create_task(_reload(service, reload)),
    ]
    try:
        await ending.asked.wait()
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        running = await service.running()
        if running:
            _say(f"finishing {running} running (Ctrl-C again: cut them)")
        stopping = asyncio.create_task(service.stop(node.config.http.drain))
        hurrying = asyncio.create_task(ending.hurried.wait())
        await asyncio.wait((stopping, hurrying), return_when=asyncio.FIRST_COMPLETED)
        if ending.hurried.is_set():
            await service.cut()
        hurrying.cancel()
        await stopping
        _say("stopped")


async def _starts(service: Single | Supervisor, ending: Ending) -> bool:
    """Whether the node has started; False where it was told to end before. Raises ConfigError."""
    starting = asyncio.create_task(service.start())
    asked = asyncio.create_task(ending.asked.wait())
    await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return False
    await starting
    ending.started = True
    return True


async def _reload(service: Single | Supervisor, asked: asyncio.Event) -> None:
    """One at a time; whatever is asked meanwhile is one more."""
    while True:
        await asked.wait()
        asked.clear()
        try:
            await service.reload()
        except Exception:
            log.exception("the settings are not read anew")


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _say(line: str) -> None:
    """Print a line; a reader that has gone is no reason to stop serving."""
    try:
        click.echo(line)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


async def _announce(devices: list[Device], base: str) -> None:
    """Print what each device has to say once it is ready, as it becomes so."""
    for ready in asyncio.as_completed([_ready(device, base) for device in devices]):
        if line := await ready:
            _say(line)


async def _ready(device: Device, base: str) -> str:
    try:
        return await device.ready(base)
    except BaseException as error:
        if not isinstance(contained(error, f"{device.name}/ready"), Exception):
            raise
        log.exception("device %s cannot say that it is ready", device.name)
        return ""


def _url_host(host: str) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"[{shown}]" if ":" in shown and not shown.startswith("[") else shown


def _shown(path: Path) -> str:
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)
