import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from devices.sev_gpu import collect
from devices.sev_gpu.config import SevGpuConfig
from devices.sev_gpu.nvml import NvmlCollector
from devices.sev_gpu.simulate import Simulator
from hyperbeam import Unavailable
from hyperbeam.verify import nvidia
from tests.hyperbeam.conftest import StartNode

from .conftest import GENEROUS, ask, client, device
from .nvml_stub import NvmlStub, build
from .pki import OcspResponder, RimService

NONCE = bytes.fromhex("ab" * 32)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def stub(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NvmlStub]:
    """A driver with two GPUs."""
    with NvmlStub(Simulator(gpus=2)) as stub:
        stub.install(library, monkeypatch)
        yield stub


def collector(**settings: Any) -> NvmlCollector:
    return NvmlCollector(SevGpuConfig(backend="nvml", **settings))


def check(stub: NvmlStub, evidences: Any) -> nvidia.Verdict:
    trust = f"simulated:{stub.simulator.fingerprint}"
    policy = nvidia.Policy(rims="allow-missing", ocsp="skip", trust=trust)
    return nvidia.verify(evidences, NONCE.hex(), policy)


async def test_every_gpu_signs_the_nonce(stub: NvmlStub) -> None:
    nvml = collector()
    assert await nvml.available() == ""
    evidences = await nvml.collect(NONCE)
    assert [one["arch"] for one in evidences] == ["HOPPER", "HOPPER"]
    verdict = check(stub, evidences)
    assert (verdict.trust, verdict.reason) == ("simulated", "simulated")
    assert sorted(stub.asked) == [0, 1]
    (one,) = await collector(gpus=[1]).collect(NONCE)
    assert one["certificate"] == evidences[1]["certificate"]


async def test_what_the_driver_says(stub: NvmlStub) -> None:
    info = await collector().info()
    assert (info["cc"], info["devtools"]) == (True, False)
    assert info["driver"] == stub.simulator.driver
    assert [gpu["index"] for gpu in info["gpus"]] == [0, 1]
    assert all(gpu["uuid"].startswith("GPU-") for gpu in info["gpus"])


async def test_a_gpu_that_hangs_is_named_and_keeps_only_itself_out(stub: NvmlStub) -> None:
    stub.hanging = {1}
    nvml = collector(timeout=0.5)
    with pytest.raises(Unavailable, match=r"GPU 1 did not answer within 0\.5 s"):
        await nvml.collect(NONCE)
    assert stub.waits.is_set() and 0 in stub.asked
    asked = len(stub.asked)
    # Neither a later call nor the question whether it works waits for it again.
    with pytest.raises(Unavailable, match="GPU 1 has not answered"):
        await nvml.collect(NONCE)
    with pytest.raises(Unavailable, match="GPU 1 has not answered") as caught:
        await nvml.available()
    assert 0 < int(caught.value.headers["retry-after"]) <= 5
    assert stub.asked[asked:].count(1) == 0
    info = await nvml.info()
    assert "GPU 1" in info["gpus"][1]["problem"] and info["gpus"][0]["name"] == "SIMULATED GPU"
    (one,) = await collector(gpus=[0]).collect(NONCE)
    assert one["nonce"] == NONCE.hex()


async def test_a_gpu_that_fails_is_named(stub: NvmlStub) -> None:
    stub.failing = {0}
    with pytest.raises(Unavailable, match="GPU 0 gave no report: Unknown Error") as caught:
        await collector().collect(NONCE)
    assert caught.value.error == "attestation_unavailable"
    stub.failing = set()
    assert len(await collector().collect(NONCE)) == 2


@pytest.mark.parametrize(
    ("cc", "devtools", "said"),
    [(False, False, "confidential computing is off"), (True, True, "devtools mode")],
)
async def test_reports_that_would_prove_nothing(
    stub: NvmlStub, cc: bool, devtools: bool, said: str
) -> None:
    stub.cc, stub.devtools = cc, devtools
    nvml = collector()
    assert said in await nvml.available()
    with pytest.raises(Unavailable, match=said):
        await nvml.collect(NONCE)
    with pytest.raises(Unavailable, match=said) as caught:
        await collect.Choice({"nvml": nvml}).find()
    assert caught.value.headers == collect.NO_RETRY
    assert stub.asked == []
    # Switched on while the node runs, it is seen.
    stub.cc, stub.devtools = True, False
    assert await nvml.available() == ""


async def test_a_gpu_that_is_not_there(stub: NvmlStub) -> None:
    assert "names GPU 2, and there are 2" in await collector(gpus=[0, 2]).available()
    with pytest.raises(Unavailable, match="GPU 2"):
        await collector(gpus=[0, 2]).collect(NONCE)


async def test_without_the_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    nvml = collector()
    assert "pip install 'hyperbeam-node[nvidia]'" in await nvml.available()
    with pytest.raises(Unavailable, match=r"hyperbeam-node\[nvidia\]"):
        await nvml.collect(NONCE)
    with pytest.raises(Unavailable) as caught:
        await collect.Choice({"nvml": nvml}).find()
    assert caught.value.headers == collect.NO_RETRY
    assert (await nvml.info())["gpus"] == []


async def test_without_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", lambda name: _missing(tmp_path / name))
    assert "NVML" in await collector().available()


def _missing(path: Path) -> Any:
    raise OSError(f"{path}: cannot open shared object file")


async def test_the_real_loader_finds_the_library(stub: NvmlStub, library: Path) -> None:
    script = (
        "import asyncio, json, sys\n"
        "from devices.sev_gpu.config import SevGpuConfig\n"
        "from devices.sev_gpu.nvml import NvmlCollector\n"
        f"nonce = bytes.fromhex({NONCE.hex()!r})\n"
        "print(json.dumps(asyncio.run(NvmlCollector(SevGpuConfig()).collect(nonce))))\n"
    )
    run = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script],
        env={**os.environ, **stub.environment(library)},
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert check(stub, json.loads(run.stdout)).trust == "simulated"


async def test_a_driver_that_is_not_nvidias_gives_a_node_no_evidence(
    stub: NvmlStub, start_node: StartNode
) -> None:
    node = await start_node(sev_gpu__backend="nvml", sev_gpu__policy=GENEROUS)
    assert await ask(node, probe=True) == {"backend": "nvml"}
    async with client(node) as http:
        reply = await http.get("/generate", params={"nonce": NONCE.hex()})
    assert reply.status_code == 503 and "not given out" in reply.text
    assert node.keys.current.message["gpu"] is None


async def test_the_key_set_names_the_gpus(stub: NvmlStub, start_node: StartNode) -> None:
    policy = {**GENEROUS, "trust": f"simulated:{stub.simulator.fingerprint}"}
    node = await start_node(sev_gpu__backend="auto", sev_gpu__policy=policy)
    await device(node).upkeep.settled()
    found = await ask(node, nonce=NONCE.hex(), client="x")
    assert found["backend"] == "nvml" and found["verified"] is False
    gpu = node.keys.current.message["gpu"]
    assert (gpu["cc"], gpu["devtools"]) == (True, False)
    assert gpu["ueids"] == [str(claims["ueid"]) for claims in found["claims"]]
    async with client(node) as http:
        info = (await http.get("/info")).json()
    assert info["backend"] == "nvml" and info["cc"] is True and len(info["gpus"]) == 2


async def test_answers_do_not_wait_for_what_is_looked_up(
    stub: NvmlStub, start_node: StartNode
) -> None:
    simulator = stub.simulator
    rims, responder = RimService(simulator.rims(), "silent"), OcspResponder(simulator.ocsp)
    with rims, responder:
        node = await start_node(
            sev_gpu__policy={"trust": f"simulated:{simulator.fingerprint}"},
            sev_gpu__rim_url=rims.url,
            sev_gpu__ocsp_url=responder.url,
            sev_gpu__verify_timeout=600,
        )
        found = await ask(node, nonce=NONCE.hex(), client="x")
        assert [one["measres"] for one in found["claims"]] != ["success"] * 2
        while not rims.asked:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        found = await ask(node, nonce=NONCE.hex(), client="x")
        assert [one["measres"] for one in found["claims"]] != ["success"] * 2


async def test_what_was_looked_up_is_remembered(stub: NvmlStub, start_node: StartNode) -> None:
    simulator = stub.simulator
    rims, responder = RimService(simulator.rims()), OcspResponder(simulator.ocsp)
    with rims, responder:
        node = await start_node(
            sev_gpu__policy={"trust": f"simulated:{simulator.fingerprint}"},
            sev_gpu__rim_url=rims.url,
            sev_gpu__ocsp_url=responder.url,
        )
        await device(node).upkeep.settled()
        assert rims.asked and responder.asked
        rims.behaviour = responder.behaviour = "error"
        found = await ask(node, nonce=NONCE.hex(), client="x")
        assert [one["measres"] for one in found["claims"]] == ["success"] * 2
        verdict = await device(node)._checker.own(found["evidences"], NONCE.hex())
        assert (verdict.revocation, verdict.reason) == ("good", "simulated")
