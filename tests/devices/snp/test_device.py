"""snp@1.0 on a node: quotes for devices and remote callers, verification over HTTP."""

import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devices.snp import asking
from devices.snp.device import Snp
from devices.snp.ioctl import GuestDevice
from hyperbeam import BadRequest, ConfigError, Unavailable
from hyperbeam.node import Node
from hyperbeam.verify import snp
from hyperbeam.verify.challenge import quote
from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.snp.certificate import read
from hyperbeam.verify.snp.report import parse
from tests.hyperbeam.verify.snp.simulated import MEASUREMENT, Processor

from .kernel import FakeConfigFS, FakeGuest, tables

StartNode = Callable[..., Awaitable[Node]]

NONCE = "0123456789abcdef" * 4
GPU = "ab" * 32
FIXTURES = Path(__file__).parents[2] / "hyperbeam" / "verify" / "snp" / "fixtures"
GENUINE = (FIXTURES / "milan_report.bin").read_bytes()
VCEK = (FIXTURES / "milan_vcek.der").read_bytes()
GENUINE_DATA = (bytes([1, 2, 3, 4, 5]) + bytes(59)).hex()
GENUINE_MEASUREMENT = parse(GENUINE).measurement.hex()


def device(node: Node) -> Snp:
    found = node.devices["snp@1.0"]
    assert isinstance(found, Snp)
    return found


def url(node: Node, key: str) -> str:
    return f"http://127.0.0.1:{node.server.port}/~snp@1.0/{key}"


@pytest.fixture
async def bare(start_node: StartNode, tmp_path: Path) -> Node:
    """A node on a machine that is no confidential VM, whatever this one is."""
    return await start_node(
        snp__configfs=str(tmp_path / "none"), snp__device=str(tmp_path / "no-device")
    )


@pytest.fixture
async def guest(start_node: StartNode, tmp_path: Path) -> Node:
    """A node in a confidential VM that is made up."""
    root = tmp_path / "report"
    root.mkdir()
    processor = Processor()
    node = await start_node(
        snp__policy={"measurements": [MEASUREMENT.hex()], "trust": processor.trust}
    )
    device(node).collectors = [FakeConfigFS(root, processor, auxiliary=tables(processor))]
    return node


async def ask(node: Node, **quoted: Any) -> dict[str, Any]:
    found = await node.resolve({}, {"path": "/~snp@1.0/generate", "priv": {"quote": quoted}})
    assert isinstance(found, dict)
    return found


def checked(quoted: dict[str, Any], node: Node) -> snp.Verdict:
    policy = snp.Policy.parse(node.config.sections["snp"]["policy"])
    return snp.verify(
        base64.b64decode(quoted["report"]),
        [base64.b64decode(item) for item in quoted["certificates"]],
        policy,
        report_data=quote(quoted["keyset"], quoted["nonce"], quoted["gpu"]),
    )


@pytest.mark.parametrize(("nonce", "gpu"), [(NONCE, GPU), (NONCE, None), (None, GPU), (None, None)])
async def test_a_device_gets_a_quote(guest: Node, nonce: str | None, gpu: str | None) -> None:
    quoted = await ask(guest, nonce=nonce, gpu=gpu)
    assert set(quoted) == {"keyset", "nonce", "gpu", "report", "certificates", "backend"}
    assert quoted["keyset"] == guest.keys.current.name
    assert (quoted["nonce"], quoted["gpu"], quoted["backend"]) == (nonce, gpu, "configfs")
    names = [read(base64.b64decode(item)).name for item in quoted["certificates"]]
    assert names == ["SEV-VCEK", "SEV-Milan", "ARK-Milan"]
    assert checked(quoted, guest).reason == "simulated"
    other = {**quoted, "gpu": None if gpu else GPU}
    assert checked(other, guest).reason == "report-data-mismatch"


async def test_a_probe_says_what_would_be_asked(guest: Node, bare: Node) -> None:
    assert await ask(guest, probe=True) == {"backend": "configfs"}
    with pytest.raises(Unavailable, match="no confidential VM") as caught:
        await ask(bare, probe=True)
    assert (caught.value.status, caught.value.error) == (503, "attestation_unavailable")


async def test_a_device_that_asks_wrongly(guest: Node) -> None:
    for quoted in ({"nonce": "short"}, {"nonce": NONCE.upper()}, {"gpu": 7}, {"nonce": b"x"}):
        with pytest.raises(BadRequest, match="64 lower-case hex"):
            await ask(guest, **quoted)


async def test_a_remote_caller_gets_a_quote_for_its_nonce(guest: Node) -> None:
    async with httpx.AsyncClient() as client:
        reply = await client.get(url(guest, "generate"), params={"nonce": NONCE})
        quoted = reply.json()
        assert reply.status_code == 200
        assert reply.headers["cache-control"] == "no-store"
        assert (quoted["keyset"], quoted["nonce"]) == (guest.keys.current.name, NONCE)
        assert quoted["gpu"] is None
        asked = {
            "report": quoted["report"],
            "certificates": quoted["certificates"],
            "quote": {name: quoted[name] for name in ("keyset", "nonce", "gpu")},
        }
        reply = await client.post(url(guest, "verify"), json=asked)
        assert (reply.text, reply.headers["x-verify-reason"]) == ("false", "simulated")
        asked["quote"]["nonce"] = "0" * 64
        reply = await client.post(url(guest, "verify"), json=asked)
        assert (reply.text, reply.headers["x-verify-reason"]) == ("false", "report-data-mismatch")


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?nonce=",
        "?nonce=00",
        f"?nonce={NONCE.upper()}",
        f"?nonce={NONCE}0",
        f"?gpu={GPU}",
        f"?priv.quote={NONCE}",
        "?priv+map=quote",
    ],
)
async def test_a_remote_caller_needs_a_nonce(guest: Node, query: str) -> None:
    async with httpx.AsyncClient() as client:
        reply = await client.get(url(guest, "generate") + query)
    assert reply.status_code == 400
    assert "report" not in reply.text[:20]


async def test_no_request_binds_a_report_to_a_gpu_or_data_of_its_own(guest: Node) -> None:
    async with httpx.AsyncClient() as client:
        for query in (f"&gpu={GPU}", "&report_data=" + "0" * 128, "&keyset=" + "0" * 64):
            reply = await client.get(url(guest, "generate") + f"?nonce={NONCE}{query}")
            report = parse(base64.b64decode(reply.json()["report"]))
            assert report.report_data == quote(guest.keys.current.name, NONCE, None)
        for private in ("priv=x", "priv%2Bmap=quote", "priv+map=quote"):
            reply = await client.get(url(guest, f"generate&{private}&nonce={NONCE}"))
            assert reply.status_code == 400


async def test_without_a_confidential_vm_it_is_503_with_why(bare: Node) -> None:
    async with httpx.AsyncClient() as client:
        headers = {"accept": "application/json"}
        reply = await client.get(url(bare, f"generate?nonce={NONCE}"), headers=headers)
        assert reply.status_code == 503
        assert reply.json()["error"] == "attestation_unavailable"
        assert "configfs: there is no" in reply.json()["body"]
        assert "ioctl: there is no" in reply.json()["body"]
        said = (await client.get(url(bare, "info"), headers=headers)).json()
        assert (said["available"], said["backend"]) == (False, "")
        assert "no confidential VM" in said["backends"]["ioctl"]


async def test_what_a_node_in_a_confidential_vm_says(guest: Node) -> None:
    async with httpx.AsyncClient() as client:
        said = (await client.get(url(guest, "info"), headers={"accept": "application/json"})).json()
        assert (said["available"], said["backend"]) == (True, "configfs")
        assert said["policy"]["measurements"] == [MEASUREMENT.hex()]
        text = (await client.get(f"http://127.0.0.1:{guest.server.port}/~snp@1.0/")).text
        assert "It does not mean" in text


async def test_the_chosen_backend_is_the_only_one(start_node: StartNode, tmp_path: Path) -> None:
    processor = Processor()
    path = tmp_path / "sev-guest"
    path.touch()
    node = await start_node(snp__backend="ioctl")
    device(node).collectors[1] = GuestDevice(path, FakeGuest(processor, tables(processor)))
    assert (await ask(node, nonce=NONCE))["backend"] == "ioctl"
    off = await start_node(snp__backend="none")
    with pytest.raises(Unavailable, match="not chosen"):
        await ask(off, nonce=NONCE)


async def test_a_cpu_that_signs_something_else_is_not_believed(guest: Node) -> None:
    fake = device(guest).collectors[0]
    assert isinstance(fake, FakeConfigFS)
    fake.sign = lambda data: Processor().report(bytes(64))
    with pytest.raises(Unavailable, match="bound to something else"):
        await ask(guest, nonce=NONCE)
    fake.sign = lambda data: b"nonsense"
    with pytest.raises(Unavailable, match="no report"):
        await ask(guest, nonce=NONCE)
    fake.root = fake.root / "gone"
    with pytest.raises(Unavailable, match="configfs: there is no"):
        await ask(guest, nonce=NONCE)


async def test_a_host_whose_table_is_broken_still_quotes(guest: Node) -> None:
    fake = device(guest).collectors[0]
    assert isinstance(fake, FakeConfigFS)
    fake.auxiliary = b"\1" * 30
    quoted = await ask(guest, nonce=NONCE)
    assert quoted["certificates"] == []
    assert checked(quoted, guest).reason == "vcek-missing"


async def post(node: Node, body: Any, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with httpx.AsyncClient() as client:
        return await client.post(url(node, "verify"), content=content, headers=headers)


def genuine(**changes: Any) -> dict[str, Any]:
    return {
        "report": base64.b64encode(GENUINE).decode(),
        "certificates": [base64.b64encode(VCEK).decode()],
        "report_data": GENUINE_DATA,
        **changes,
    }


async def test_the_genuine_report_over_http(start_node: StartNode, bare: Node) -> None:
    reply = await post(bare, genuine())
    assert (reply.status_code, reply.text) == (200, "false")
    assert reply.headers["x-verify-reason"] == "debug-allowed"
    policy = {"measurements": [GENUINE_MEASUREMENT], "debug": "allow"}
    node = await start_node(snp__policy=policy)
    reply = await post(node, genuine())
    assert (reply.text, reply.headers["content-type"]) == ("true", "text/plain")
    assert reply.headers["cache-control"] == "no-store"
    assert "x-verify-reason" not in reply.headers
    reply = await post(node, genuine(), accept="application/json")
    verdict = reply.json()
    assert (verdict["verified"], verdict["trust"], verdict["reason"]) == (True, "amd", "")
    assert verdict["claims"][0]["product"] == "Milan"
    assert {check["name"] for check in verdict["checks"]} >= {"chain", "signature", "tcb", "chip"}


async def test_a_caller_may_only_demand_more(start_node: StartNode, bare: Node) -> None:
    policy = {"measurements": [GENUINE_MEASUREMENT], "debug": "allow"}
    node = await start_node(snp__policy=policy)
    reply = await post(node, genuine(policy={"debug": "refuse"}))
    assert (reply.text, reply.headers["x-verify-reason"]) == ("false", "debug-allowed")
    for looser in (policy, {"debug": "allow"}, {"trust": "simulated:" + "0" * 64}):
        reply = await post(bare, genuine(policy=looser))
        assert reply.status_code == 400
        assert reply.headers["x-verify-reason"] == "policy-looser"
    async with httpx.AsyncClient() as client:
        reply = await client.post(
            url(bare, "verify?debug=allow&policy=allow"),
            json=genuine(),
            headers={"policy": json.dumps(policy), "debug": "allow"},
        )
    assert reply.text == "false"


async def test_without_an_expectation_nothing_verifies(start_node: StartNode) -> None:
    node = await start_node(snp__policy={"measurements": [GENUINE_MEASUREMENT], "debug": "allow"})
    asked = genuine()
    del asked["report_data"]
    reply = await post(node, asked)
    assert (reply.text, reply.headers["x-verify-reason"]) == ("false", "report-data-not-given")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"[]",
        b"null",
        b"{}",
        b"\xff",
        b'{"report": "AA==", "report": "AA=="}',
        b"[" * 100_000,
        b" " * (asking.MAX_BODY + 1),
        genuine(more=1),
        genuine(report=7),
        genuine(report="?"),
        genuine(report="\u0141A=="),
        genuine(report="A" * 5000),
        genuine(certificates="x"),
        genuine(certificates=[7]),
        genuine(certificates=["?"]),
        genuine(certificates=["AA=="] * 17),
        genuine(report_data="00"),
        genuine(report_data=GENUINE_DATA.replace("1", "A", 1) + "A"),
        genuine(quote={}),
        genuine(quote={"keyset": "0" * 64, "nonce": None}),
        genuine(policy=[]),
        genuine(policy={"unknown": 1}),
    ],
)
async def test_what_is_no_request_is_400(bare: Node, body: Any) -> None:
    reply = await post(bare, body)
    assert reply.status_code == 400
    assert reply.headers["x-verify-reason"].endswith("malformed")


async def test_two_expectations_have_to_agree(bare: Node) -> None:
    bound = {"keyset": "0" * 64, "nonce": NONCE, "gpu": None}
    same = quote("0" * 64, NONCE, None).hex()
    reply = await post(bare, genuine(quote=bound, report_data=same))
    assert (reply.status_code, reply.text) == (200, "false")
    reply = await post(bare, genuine(quote=bound))
    assert reply.status_code == 400
    assert reply.headers["x-verify-reason"] == "evidence-conflict"


async def test_pem_certificates_are_taken(start_node: StartNode) -> None:
    node = await start_node(snp__policy={"measurements": [GENUINE_MEASUREMENT], "debug": "allow"})
    text = base64.encodebytes(VCEK).decode()
    pem = f"-----BEGIN CERTIFICATE-----\n{text}-----END CERTIFICATE-----\n"
    assert (await post(node, genuine(certificates=[pem]))).text == "true"


@pytest.mark.parametrize(
    "settings_",
    [
        {"snp__policy": {"debug": "maybe"}},
        {"snp__certificates": "/nowhere/at/all"},
        {"snp__backend": "magic"},
        {"snp__other": "1"},
    ],
)
async def test_wrong_settings_end_the_start(
    start_node: StartNode, settings_: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="snp"):
        await start_node(**settings_)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just(GENUINE_DATA),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.fixed_dictionaries(
            {},
            optional={
                "report": JSON,
                "certificates": JSON,
                "report_data": JSON,
                "quote": JSON | st.just({"keyset": "0" * 64, "nonce": None, "gpu": None}),
                "policy": JSON,
                "other": JSON,
            },
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_any_body_is_a_request_or_refused(body: bytes) -> None:
    try:
        asked = asking.read(body)
    except Malformed as error:
        assert error.reason in ("request-malformed", "evidence-conflict")
    else:
        assert asked.report_data is None or len(asked.report_data) == 64
