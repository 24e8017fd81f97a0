"""receipt-log@1.0 over HTTP, in nodes that are stopped, copied and restored."""

import asyncio
import json
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from hyperbeam import ConfigError
from hyperbeam.config import load
from hyperbeam.node import Node
from hyperbeam.verify import checkpoint as notes
from hyperbeam.verify import jcs, merkle
from hyperbeam.verify import receipt as receipts
from hyperbeam.verify.checkpoint import ED25519, SignedCheckpoint, VerifierKey
from tests.hyperbeam.test_receipts import a_receipt

from .logs import check_no_fork
from .test_cosignatures import ONE, STRANGER

LOG = "/~receipt-log@1.0"
JSON = {"accept": "application/json"}


class Client:
    """What somebody sees of one node's log, each head's signature checked."""

    def __init__(self, node: Node, http: httpx.AsyncClient) -> None:
        self.node = node
        self.http = http
        self.origin = f"hyperbeam/receipts/{node.identity.address}"

    async def get(self, path: str) -> httpx.Response:
        return await self.http.get(f"{LOG}/{path}", headers=JSON if "?" in path else {})

    async def head(self, query: str = "") -> SignedCheckpoint:
        reply = await self.http.get(f"{LOG}/head{query}")
        assert reply.status_code == 200, reply.text
        assert reply.headers["content-type"].startswith("text/plain")
        return self.checked(reply.text)

    async def status(self) -> dict[str, Any]:
        reply = await self.http.get(f"{LOG}/head", headers=JSON)
        found: dict[str, Any] = reply.json()
        return found

    def checked(self, text: str) -> SignedCheckpoint:
        signed = notes.parse(text)
        key = VerifierKey(signed.checkpoint.origin, ED25519, self.node.keys.current.log_public)
        assert notes.verify(signed, key)
        return signed

    def add(self, count: int = 1) -> list[str]:
        """Receipts' ids."""
        made = [a_receipt(self.node.keys) for _ in range(count)]
        for each in made:
            self.node.receipts.add(each, self.node.keys.current)
        return [each["id"] for each in made]

    async def proof(self, id: str) -> dict[str, Any]:
        """A receipt's proof, checked against the receipt itself; the head's key may be older."""
        reply = await self.http.get(f"{LOG}/inclusion?id={id}")
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        receipt = await self.node.receipts.get(id)
        assert receipt is not None
        assert check_inclusion(found, merkle.leaf_hash(receipts.leaf(receipt)))
        assert found["id"] == id
        return found


def check_inclusion(proof: dict[str, Any], leaf: bytes) -> bool:
    head = notes.parse(proof["checkpoint"]).checkpoint
    path = [bytes.fromhex(item) for item in proof["path"]]
    assert (proof["v"], proof["leaf"]) == ("hyperbeam.inclusion/1", leaf.hex())
    assert proof["size"] == head.size
    return merkle.verify_inclusion(leaf, proof["index"], head.size, path, head.root)


@asynccontextmanager
async def running(home: Path, **flags: Any) -> AsyncIterator[Client]:
    settings = {"home": str(home), "http.port": 0, **flags}
    async with Node(load(environment={}, flags=settings)) as node:
        assert "receipt-log@1.0" in node.devices, node.failures
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.server.port}") as http:
            yield Client(node, http)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
async def client(home: Path) -> AsyncIterator[Client]:
    async with running(home) as client:
        yield client


async def test_a_new_node(client: Client) -> None:
    head = await client.head()
    assert head.checkpoint == notes.Checkpoint(client.origin, 0, merkle.EMPTY)
    assert head.text().splitlines()[:2] == [client.origin, "0"]
    status = await client.status()
    assert (status["begins"], status["cosigned"], status["ended"]) == (None, None, [])
    assert (status["size"], status["root"]) == (0, merkle.EMPTY.hex())
    assert status["origin"] == client.origin
    described = client.node.device("receipt-log@1.0").describe()
    assert described == {"origin": client.origin, "size": 0}


async def test_a_head_has_what_was_stored_before(client: Client) -> None:
    client.add(3)
    assert (await client.head()).checkpoint.size == 3
    client.add(2)
    assert (await client.head()).checkpoint.size == 5


async def test_a_receipt_is_logged_without_being_asked_for(home: Path) -> None:
    async with running(home, **{"receipt-log.gather": 0.01}) as client:
        client.add(1)
        async with asyncio.timeout(20):
            while "Leaves:     1\n" not in (await client.http.get(f"{LOG}/")).text:
                pass


async def test_inclusion_by_id_leaf_and_index(client: Client) -> None:
    ids = client.add(4)
    for number, id in enumerate(ids):
        by_id = await client.proof(id)
        assert by_id["index"] == number
        by_leaf = (await client.get(f"inclusion?leaf={by_id['leaf']}")).json()
        by_index = (await client.get(f"inclusion?index={number}")).json()
        del by_id["id"]
        assert by_leaf == by_index == by_id
        older = (await client.get(f"inclusion?index={number}&size={number + 1}")).json()
        assert older["size"] == number + 1
        assert check_inclusion(older, bytes.fromhex(by_id["leaf"]))
    assert await client.node.receipts.get(ids[0])
    assert client.node.receipts.index(ids[2]) == 2


async def test_consistency(client: Client) -> None:
    heads = [await client.head()]
    for count in (1, 2, 4):
        client.add(count)
        heads.append(await client.head())
    for old in heads:
        for new in heads:
            first, second = old.checkpoint, new.checkpoint
            reply = await client.get(f"consistency?old={first.size}&new={second.size}")
            if first.size > second.size:
                assert reply.status_code == 400
                continue
            proof = reply.json()
            path = [bytes.fromhex(item) for item in proof["path"]]
            assert proof["v"] == "hyperbeam.consistency/1"
            assert (proof["old"], proof["new"]) == (first.size, second.size)
            assert client.checked(proof["checkpoint"]).checkpoint == second
            sizes = first.size, second.size
            assert merkle.verify_consistency(*sizes, first.root, second.root, path)
    latest = (await client.get("consistency?old=1")).json()
    assert latest["new"] == 7
    assert (await client.head("?size=3")).checkpoint == heads[2].checkpoint


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("head?size=4", 404),
        ("head?size=x", 400),
        ("head?size=-1", 400),
        ("head?size=01", 400),
        ("head?size=1.0", 400),
        ("head?size=99999999999999999999", 400),
        ("head?log=elsewhere", 404),
        ("head?log+list=1", 400),
        ("inclusion", 400),
        ("inclusion?index=0&leaf=" + "0" * 64, 400),
        ("inclusion?index=3", 404),
        ("inclusion?index=1&size=1", 404),
        ("inclusion?index=0&size=0", 404),
        ("inclusion?index=0&size=4", 404),
        ("inclusion?index=", 400),
        ("inclusion?index=%D9%A1", 400),
        ("inclusion?index=0&log=hyperbeam/receipts/none", 404),
        ("inclusion?leaf=" + "0" * 64, 404),
        ("inclusion?leaf=" + "0" * 63, 400),
        ("inclusion?leaf=" + "A" * 64, 400),
        ("inclusion?id=" + "0" * 32, 404),
        ("inclusion?id=" + "0" * 31, 400),
        ("inclusion?id=../../etc/passwd", 400),
        ("consistency", 400),
        ("consistency?old=3&new=2", 400),
        ("consistency?old=4", 404),
        ("consistency?old=1&new=4", 404),
        ("consistency?old=true", 400),
        ("consistency?old+integer=-1", 400),
        ("consistency?old+map=a", 400),
        ("cosign?body=x", 405),
        ("nothing", 404),
    ],
)
async def test_refusals(client: Client, path: str, status: int) -> None:
    client.add(3)
    await client.head()
    reply = await client.get(path)
    assert reply.status_code == status, reply.text
    assert "Traceback" not in reply.text


async def test_the_page_says_which_log_it_is(client: Client) -> None:
    reply = await client.http.get(f"{LOG}/")
    assert reply.status_code == 200
    assert client.origin in reply.text
    assert "Witnesses:  none" in reply.text


async def test_a_restart_goes_on_with_another_key(home: Path) -> None:
    async with running(home) as client:
        first = client.add(3)
        before = await client.head()
    async with running(home) as client:
        after = await client.head()
        assert after.checkpoint == before.checkpoint
        assert after.signatures != before.signatures
        client.add(1)
        assert (await client.head()).checkpoint.size == 4
        assert [(await client.proof(id))["index"] for id in first] == [0, 1, 2]


async def test_what_was_stored_last_is_logged_at_the_next_start(home: Path) -> None:
    async with running(home) as client:
        client.add(1)
        await client.head()
        log = client.node.device("receipt-log@1.0")
        await log.stop()
        late = client.add(2)
        await client.node.receipts.flush()
        reply = await client.get(f"inclusion?id={late[0]}")
        assert reply.status_code == 503
    async with running(home) as client:
        assert [(await client.proof(id))["index"] for id in late] == [1, 2]


@pytest.mark.parametrize("whole", [True, False])
async def test_a_restored_backup(home: Path, tmp_path: Path, whole: bool) -> None:
    async with running(home) as client:
        old = client.add(3)
        heads = [await client.head()]
    backup = tmp_path / "backup"
    shutil.copytree(home, backup)
    async with running(home) as client:
        client.add(2)
        heads.append(await client.head())
    place = Path() if whole else Path("log")
    shutil.rmtree(home / place)
    shutil.copytree(backup / place, home / place)
    async with running(home) as client:
        new = client.add(2)
        heads.append(await client.head())
        assert heads[-1].checkpoint.origin.startswith(f"{client.origin}/")
        status = await client.status()
        assert status["begins"]["reason"] == "hashes-replaced"
        assert notes.parse(status["begins"]["previous"]).checkpoint == heads[0].checkpoint
        assert status["ended"] == [{"origin": client.origin, "size": 3}]
        first = (await client.get("inclusion?index=0")).json()
        assert check_inclusion(first, merkle.leaf_hash(jcs.encode(status["begins"])))
        for id in old:
            proof = await client.proof(id)
            assert notes.parse(proof["checkpoint"]).checkpoint == heads[0].checkpoint
        for id in new:
            proof = await client.proof(id)
            assert client.checked(proof["checkpoint"]).checkpoint.origin == status["origin"]
        ended = f"log={client.origin}"
        assert (await client.get(f"head?{ended}")).json()["size"] == 3
        assert (await client.get(f"consistency?old=2&{ended}")).json()["new"] == 3
        assert (await client.get(f"inclusion?index=1&{ended}")).json()["size"] == 3
        for path in ("head?size=2", "inclusion?index=1&size=2", "consistency?old=1&new=2"):
            assert (await client.get(f"{path}&{ended}")).status_code == 404
    check_no_fork(heads)


async def test_two_nodes_on_copies_of_one_home(home: Path, tmp_path: Path) -> None:
    async with running(home) as client:
        client.add(2)
        heads = [await client.head()]
        # While it runs: a copy of a store that is being written may not start, so not that.
        shutil.copytree(home, tmp_path / "copy", ignore=shutil.ignore_patterns("store"))
        async with running(tmp_path / "copy") as other:
            assert other.origin == client.origin
            for each in (other, client, other, client):
                each.add(1)
                heads.append(await each.head())
    async with running(tmp_path / "copy") as other:
        other.add(1)
        heads.append(await other.head())
    async with running(home) as client:
        client.add(1)
        heads.append(await client.head())
    check_no_fork(heads)
    assert len({each.checkpoint.origin for each in heads}) == 2


@pytest.mark.parametrize("brought", [["identity.key"], ["identity.key", "lock"]])
async def test_an_identity_that_was_brought_from_elsewhere(
    home: Path, tmp_path: Path, brought: list[str]
) -> None:
    async with running(home) as client:
        client.add(1)
        heads = [await client.head()]
    other = tmp_path / "other"
    other.mkdir()
    for name in brought:
        shutil.copy(home / name, other / name)
    async with running(other) as client:
        heads.append(await client.head())
        assert heads[1].checkpoint.origin.startswith(heads[0].checkpoint.origin + "/")
        assert (await client.status())["begins"]["reason"] == "log-missing"


async def test_a_log_that_was_deleted(home: Path) -> None:
    async with running(home) as client:
        client.add(2)
        heads = [await client.head()]
    shutil.rmtree(home / "log")
    async with running(home) as client:
        client.add(1)
        heads.append(await client.head())
        assert (await client.status())["begins"]["reason"] == "log-missing"
    check_no_fork(heads)


def delete_log(home: Path) -> None:
    shutil.rmtree(home / "log")


def cut_hashes(home: Path) -> None:
    with (home / "log" / "1" / "hashes").open("r+b") as file:
        file.truncate(64)


@pytest.mark.parametrize("lose", [delete_log, cut_hashes])
async def test_receipts_of_a_lost_log_are_logged_again(
    home: Path, lose: Callable[[Path], None]
) -> None:
    async with running(home) as client:
        ids = client.add(3)
        await client.head()
    lose(home)
    async with running(home, **{"receipt-log.gather": 0.01}) as client:
        async with asyncio.timeout(20):
            while (await client.head()).checkpoint.size < 4:
                pass
        origins = {notes.parse((await client.proof(id))["checkpoint"]) for id in ids}
        assert {each.checkpoint.origin for each in origins} == {(await client.status())["origin"]}
        assert (await client.head()).checkpoint.size == 4
    async with running(home) as client:
        assert sorted([(await client.proof(id))["index"] for id in ids]) == [1, 2, 3]


@pytest.mark.parametrize("whole", [True, False])
async def test_an_ended_log_damaged_while_the_node_runs(home: Path, whole: bool) -> None:
    async with running(home) as client:
        ids = client.add(6)
        await client.head()
    hashes = home / "log" / "1" / "hashes"
    os.utime(hashes)
    async with running(home) as client:
        assert [(await client.proof(id))["size"] for id in ids] == [6] * 6
        with hashes.open("r+b") as file:
            if whole:
                file.truncate(0)
            else:
                file.write(b"\0" * 32)
        # The first leaf is gone, and with it what the second is proven by.
        for number, id in enumerate(ids):
            again = whole or number < 2
            assert (await client.proof(id))["index"] == (number + 1 if again else number)
            assert (await client.proof(id))["index"] == (number + 1 if again else number)
        assert (await client.head()).checkpoint.size == (7 if whole else 3)
    async with running(home) as client:
        assert [(await client.proof(id))["index"] for id in ids[:2]] == [1, 2]


async def test_a_receipt_that_is_damaged(home: Path) -> None:
    async with running(home) as client:
        (id,) = client.add(1)
        await client.head()
        with sqlite3.connect(home / "receipts.sqlite") as file:
            file.execute("UPDATE receipts SET body = 'x'")
        file.close()
        for path in (f"inclusion?id={id}", f"../~inference@1.0/receipt/{id}"):
            reply = await client.get(path)
            assert reply.status_code == 503
            assert f"receipt {id} is damaged" in reply.text


@pytest.mark.parametrize("stray", ["log", "log/1"])
async def test_a_folder_that_is_no_log(home: Path, stray: str) -> None:
    (home / stray).parent.mkdir(parents=True)
    (home / stray).write_bytes(b"")
    with pytest.raises(ConfigError, match=r"the log of receipts in .* cannot be opened"):
        async with running(home):
            pass


async def test_another_identity_in_the_same_home(home: Path) -> None:
    async with running(home) as client:
        client.add(2)
        before = await client.head()
    (home / "identity.key").unlink()
    async with running(home) as client:
        after = await client.head()
        assert after.checkpoint.origin.startswith(f"{client.origin}/")
        status = await client.status()
        assert status["begins"]["reason"] == "other-node"
        assert notes.parse(status["begins"]["previous"]).checkpoint == before.checkpoint


async def test_damaged_hashes_prove_nothing(home: Path) -> None:
    async with running(home) as client:
        client.add(6)
        await client.head()
        with (home / "log" / "1" / "hashes").open("r+b") as file:
            file.write(b"\0" * 32)
        for path in ("inclusion?index=0", "inclusion?index=1", "consistency?old=1"):
            reply = await client.get(path)
            assert reply.status_code == 503, path
        assert (await client.get("inclusion?index=4")).status_code == 200


async def test_cosignatures_over_http(home: Path) -> None:
    witnesses = json.dumps([ONE.key.text()])
    async with running(home, **{"receipt-log.witnesses": witnesses}) as client:
        ids = client.add(2)
        head = await client.head()
        url = f"{LOG}/cosign"
        for status, body in (
            (400, b""),
            (400, b"nothing"),
            (403, STRANGER.cosign(head.checkpoint).line().encode()),
            (409, ONE.cosign(notes.Checkpoint(client.origin, 2, b"\0" * 32)).line().encode()),
        ):
            assert (await client.http.post(url, content=body)).status_code == status
        cosignature = ONE.cosign(head.checkpoint, 1000)
        reply = await client.http.post(url, content=cosignature.line().encode())
        assert reply.status_code == 200, reply.text
        assert reply.json()["accepted"] == [{"name": ONE.key.name, "time": 1000}]
        assert notes.cosigned(client.checked(reply.json()["checkpoint"]), ONE.key) == 1000
        assert notes.cosigned(await client.head(), ONE.key) == 1000

        late = client.add(1)
        assert notes.cosigned(await client.head(), ONE.key) is None
        assert notes.cosigned(await client.head("?size=2"), ONE.key) == 1000
        assert (await client.status())["cosigned"]["size"] == 2
        # A receipt that the witness's head has is proven under that.
        assert (await client.proof(ids[0]))["size"] == 2
        assert (await client.proof(late[0]))["size"] == 3
        assert ONE.key.name in (await client.http.get(f"{LOG}/")).text
    async with running(home, **{"receipt-log.witnesses": witnesses}) as client:
        assert notes.cosigned(await client.head("?size=2"), ONE.key) == 1000
    async with running(home) as client:
        assert notes.cosigned(await client.head("?size=2"), ONE.key) is None


@pytest.mark.parametrize(
    "key",
    ["nothing", notes.VerifierKey("a", ED25519, ONE.key.key).text(), "a" * 5000],
    ids=["text", "a key of another kind", "too long"],
)
async def test_a_witness_that_cannot_be_read(home: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=r"\[receipt-log\] witnesses"):
        async with running(home, **{"receipt-log.witnesses": json.dumps([key])}):
            pass


async def test_the_section_of_the_file(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "hyperbeam.toml"
    file.write_text(f'[receipt-log]\nwitnesses = ["{ONE.key.text()}"]\ngather = 0.5\n')
    config = load(file, environment={}, flags={"home": str(home), "http.port": 0})
    async with Node(config) as node:
        assert node.device("receipt-log@1.0").config.gather == 0.5


async def test_heads_while_receipts_come(home: Path) -> None:
    async with running(home, **{"receipt-log.gather": 0.001}) as client:
        done = asyncio.Event()
        heads: list[SignedCheckpoint] = []

        async def read() -> None:
            while not done.is_set():
                heads.append(await client.head())

        async def prove() -> None:
            for _ in range(4):
                for id in client.add(5):
                    await client.proof(id)

        readers = [asyncio.create_task(read()) for _ in range(3)]
        await asyncio.gather(*(prove() for _ in range(3)))
        done.set()
        await asyncio.gather(*readers)
        check_no_fork(heads)
        last = await client.head()
        assert last.checkpoint.size == 60
        seen = {each.checkpoint.size: each.checkpoint.root for each in heads}
        for size, root in seen.items():
            proof = (await client.get(f"consistency?old={size}&new=60")).json()
            path = [bytes.fromhex(item) for item in proof["path"]]
            assert merkle.verify_consistency(size, 60, root, last.checkpoint.root, path)
