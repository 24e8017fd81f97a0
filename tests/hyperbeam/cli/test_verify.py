"""`hyperbeam verify` as it is run: files, standard input, addresses, exit statuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hyperbeam.cli import cli
from hyperbeam.cli.verdict_text import lines

from ..verify.cases import Case, rims_of
from ..verify.documents import ANSWER, NONCE, REQUEST
from ..verify.nvidia import pki
from ..verify.nvidia.samples import NONCE as SAMPLE_NONCE
from ..verify.nvidia.samples import RIMS, entry
from ..verify.test_receipts_and_logs import CASE as LOG_CASE
from ..verify.test_receipts_and_logs import HASHES, RECEIPT, consistency, head, inclusion
from .servers import body, serving

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command, with a memory of its own and without the network."""
    monkeypatch.delenv("HYPERBEAM_TESTS", raising=False)

    def call(*arguments: Any, online: bool = False, stdin: bytes | None = None) -> Result:
        more = ["--state", str(tmp_path / "state"), *([] if online else ["--offline"])]
        words = ["verify", *map(str, arguments), *more]
        result = CliRunner().invoke(cli, words, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, Any], Path]:
    def write(name: str, content: Any) -> Path:
        path = tmp_path / name
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        path.write_bytes(data)
        return path

    return write


def test_a_receipt_passes_and_a_changed_one_does_not(run: Run, put: Any) -> None:
    keyset = put("keyset.json", LOG_CASE.signer.keyset())
    passed = run(put("receipt.json", RECEIPT), "--keyset", keyset, "--nonce", NONCE)
    assert passed.exit_code == 0, passed.output
    assert "PASSED: signed" in passed.output and "trust:" not in passed.output
    failed = run(put("receipt.json", {**RECEIPT, "seed": 8}), "--keyset", keyset)
    assert failed.exit_code == 1
    assert "NOT VERIFIED: signature-invalid" in failed.output
    alone = run(put("receipt.json", RECEIPT))
    assert alone.exit_code == 1 and "NOT VERIFIED: keyset-not-given" in alone.output


def test_a_simulated_answer_says_so_and_exits_with_3(
    run: Run, put: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    dates = {"begins": now - timedelta(days=1), "ends": now + timedelta(days=1)}
    for name, date in dates.items():
        monkeypatch.setitem(pki.issue.__kwdefaults__, name, date)
    case = Case(world=pki.World())
    answer = put("answer.json", case.reply())
    words = ["--keyset", put("keyset.json", case.signer.keyset()), "--rims", rims_of(case.world),
             "--policy", put("policy.json", {"ocsp": "skip"})]  # fmt: skip
    said = run(answer, *words, "--trust", case.world.trust)
    assert said.exit_code == 3, said.output
    assert "SIMULATED" in said.output and "PASSED" not in said.output
    as_json = json.loads(run(answer, *words, "--trust", case.world.trust, "--json").output)
    assert as_json["verified"] is False and as_json["simulated_pass"] is True
    assert run(answer, *words).exit_code == 1
    changed = put("answer.json", case.reply().replace(b"you", b"You", 1))
    assert run(changed, *words, "--trust", case.world.trust).exit_code == 1


def test_the_genuine_sample_passes_in_tests_only(
    run: Run, put: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = put("evidence.json", [entry()])
    policy = put("policy.json", {"ocsp": "skip"})
    words = (evidence, "--policy", policy, "--rims", RIMS, "--nonce", SAMPLE_NONCE)
    refused = run(*words, "--at", "2024-06-01")
    assert refused.exit_code == 1 and "nonce-published" in refused.output
    monkeypatch.setenv("HYPERBEAM_TESTS", "1")
    passed = run(*words, "--at", "2024-06-01")
    assert passed.exit_code == 0, passed.output
    assert "PASSED: device-genuine" in passed.output and "rims: expired" in passed.output
    assert "33 of 33" in passed.output
    now = run(*words)
    assert now.exit_code == 1 and "expired" in now.output
    strict = run(evidence, "--rims", RIMS, "--nonce", SAMPLE_NONCE, "--at", "2024-06-01T00:00:00Z")
    assert strict.exit_code == 1


@pytest.mark.parametrize(
    ("text", "word"),
    [(b"", "empty"), (b"what", "JSON"), (b"{}", "no answer"), (b'{"error":{}}', "error reply")],
)
def test_what_cannot_be_read_exits_with_2(run: Run, text: bytes, word: str) -> None:
    said = run("-", stdin=text)
    assert said.exit_code == 2 and word in said.output
    as_json = run("-", "--json", stdin=text)
    assert as_json.exit_code == 2
    assert json.loads(as_json.stdout)["verified"] is False


def test_bad_usage_exits_with_2(run: Run, put: Any, tmp_path: Path) -> None:
    receipt = put("receipt.json", RECEIPT)
    bad = put("bad.json", b"{")
    for words in (
        [],
        [tmp_path / "missing"],
        [tmp_path],
        [receipt, "--nonce", "00"],
        [receipt, "--policy", bad],
        [receipt, "--policy", tmp_path / "missing"],
        [receipt, "--revoked", put("list", b"what is this")],
        [receipt, "--keyset", bad],
        [receipt, "--receipt", bad],
        [receipt, "--trust", "everybody"],
        [receipt, "--at", "yesterday"],
        [receipt, "--rims", tmp_path / "missing"],
        [receipt, "--kind", "answer"],
        [receipt, "--kind", "foo"],
        [receipt, "--receipt", receipt],
        [put("keyset.json", LOG_CASE.signer.keyset()), "--nonce", NONCE],
        [put("answer.json", LOG_CASE.reply()), "--answer", receipt],
        ["http://127.0.0.1:9/x"],
        [receipt, "--keyset", "http://127.0.0.1:9/"],
    ):
        said = run(*words)
        assert said.exit_code == 2, said.output
        assert "Traceback" not in said.output


def test_standard_input_is_read(run: Run, put: Any) -> None:
    keyset = put("keyset.json", LOG_CASE.signer.keyset())
    said = run("-", "--keyset", keyset, "--json", stdin=json.dumps(RECEIPT).encode())
    assert said.exit_code == 0
    assert json.loads(said.output)["shows"] == "signed"


def test_the_request_and_the_list_of_revoked_are_read(run: Run, put: Any) -> None:
    keyset = put("keyset.json", LOG_CASE.signer.keyset())
    receipt = put("receipt.json", RECEIPT)
    words = (receipt, "--keyset", keyset)
    assert run(*words, "--request", put("request", REQUEST)).exit_code == 0
    other = run(*words, "--request", put("request", REQUEST + b" "))
    assert other.exit_code == 1 and "request-mismatch" in other.output
    revoked = put("revoked", f"{LOG_CASE.signer.node}\n".encode())
    said = run(*words, "--revoked", revoked)
    assert said.exit_code == 1 and "node-revoked" in said.output
    policy = put("policy.json", {"nodes": ["A" * 43]})
    assert "node-not-allowed" in run(*words, "--policy", policy).output


def test_a_receipt_with_its_plain_answer(run: Run, put: Any) -> None:
    keyset = put("keyset.json", LOG_CASE.signer.keyset())
    words = (put("receipt.json", RECEIPT), "--keyset", keyset, "--answer")
    assert run(*words, put("answer.json", ANSWER)).exit_code == 0
    assert "reply-mismatch" in run(*words, put("answer.json", ANSWER[:-1] + b" }")).output
    alone = run(put("answer.json", ANSWER), "--keyset", keyset, "--receipt", words[0])
    assert alone.exit_code == 1 and "no-attestation" in alone.output


def test_an_address_brings_its_key_set_and_its_proofs(run: Run, put: Any) -> None:
    keyset = json.dumps(LOG_CASE.signer.keyset()).encode()
    name = LOG_CASE.signer.keyset_name
    answers = {
        "/receipt": body(json.dumps(RECEIPT).encode()),
        "/old": body(head(HASHES[:2]).encode()),
        "/new": body(head(HASHES).encode()),
        "/inclusion": body(json.dumps(inclusion(3)).encode()),
        "/~meta@1.0/keyset": body(keyset),
        f"/~meta@1.0/keyset/{name}": body(keyset),
        "/~receipt-log@1.0/consistency": body(json.dumps(consistency(2, 6)).encode()),
    }
    with serving(answers) as (url, asked):
        assert run(f"{url}/receipt", online=True).exit_code == 0
        assert asked == ["/receipt", f"/~meta@1.0/keyset/{name}"]
        assert run(f"{url}/old", online=True).exit_code == 0
        grown = run(f"{url}/new", online=True)
        assert grown.exit_code == 0 and "it continues the head of 2" in grown.output
        assert asked[-1].startswith("/~receipt-log@1.0/consistency?")
        receipt = put("receipt.json", RECEIPT)
        proof = run(f"{url}/inclusion", "--receipt", receipt, online=True)
        assert proof.exit_code == 0 and "log: self-signed" in proof.output
        for where in (url, f"{url}/", f"{url}/~meta@1.0/keyset"):
            assert run(receipt, "--keyset", where, online=True).exit_code == 0
        asked.clear()
        assert run(receipt, "--keyset", url, online=True).exit_code == 0
        assert asked == [f"/~meta@1.0/keyset/{name}"]
        asked.clear()
        dead = "http://127.0.0.1:9"
        assert run(receipt, "--keyset", dead, "--keyset", url, online=True).exit_code == 0
        unreachable = run(receipt, "--keyset", dead, online=True)
        assert unreachable.exit_code == 1 and "keyset-unreachable" in unreachable.output
        asked.clear()
        assert run(f"{url}/receipt").exit_code == 2
        assert run(receipt, "--keyset", url).exit_code == 2
        assert asked == []
        assert run(f"{url}/missing", online=True).exit_code == 2


def test_heads_are_remembered_from_one_run_to_the_next(run: Run, put: Any, tmp_path: Path) -> None:
    keyset = put("keyset.json", LOG_CASE.signer.keyset())
    new, old = put("new", head(HASHES).encode()), put("old", head(HASHES[:5]).encode())
    other = put("other", head([*HASHES[:-1], HASHES[0]]).encode())
    assert run(new, "--keyset", keyset).exit_code == 0
    forked = run(other, "--keyset", keyset)
    assert forked.exit_code == 1 and "NOT VERIFIED: log-fork" in forked.output
    back = run(old, "--keyset", keyset)
    assert back.exit_code == 1 and "NOT VERIFIED: log-rollback" in back.output
    assert run(new, "--keyset", keyset).exit_code == 0
    next((tmp_path / "state").iterdir()).write_bytes(b"{")
    damaged = run(new, "--keyset", keyset)
    assert damaged.exit_code == 2 and str(tmp_path / "state") in damaged.output


def test_what_others_wrote_cannot_steer_the_terminal(run: Run, put: Any) -> None:
    signer = LOG_CASE.signer
    model = {"name": "\x1b[2Jm\r\n\u202ePASSED", "sha256": None, "size": None, "by": "declared"}
    receipt = put("receipt.json", signer.make_receipt(None, ANSWER, model=model))
    said = run(receipt, "--keyset", put("keyset.json", signer.keyset()))
    assert "\x1b[2J" not in said.output and "\u202e" not in said.output


def test_colours_are_for_terminals() -> None:
    verdict = LOG_CASE.verify(RECEIPT)
    assert any("\x1b[" in line for line in lines(verdict))


@pytest.mark.parametrize(("word", "coloured"), [(None, True), ("", True), ("1", False)])
def test_no_color_is_heeded_on_a_terminal(
    put: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str | None, coloured: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if word is not None:
        monkeypatch.setenv("NO_COLOR", word)
    keyset = put("keyset.json", LOG_CASE.signer.keyset())
    words = ["verify", str(keyset), "--state", str(tmp_path / "state"), "--offline"]
    said = CliRunner().invoke(cli, words, color=True)
    assert "signed" in said.output and ("\x1b[" in said.output) is coloured


def test_a_word_that_is_no_kind_is_wrong_usage(run: Run, put: Any) -> None:
    said = run(put("receipt.json", RECEIPT), "--kind", "foo")
    assert said.exit_code == 2 and "Usage:" in said.output
    assert "receipt, keyset" in said.output and "of kind" not in said.output
