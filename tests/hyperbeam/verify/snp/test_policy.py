"""What a policy may say, and that a caller only ever demands more."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.snp import Policy

A, B = "aa" * 48, "bb" * 48
OWN = Policy.parse(
    {
        "measurements": [A, B],
        "debug": "allow",
        "max_vmpl": 2,
        "min_tcb": {"Milan": {"snp": 5}},
        "min_guest_svn": 2,
        "author_keys": [A],
        "keys": ["vcek"],
    }
)


def test_strict_unless_told_otherwise() -> None:
    policy = Policy.parse({})
    assert policy == Policy()
    assert (policy.measurements, policy.debug, policy.migration) == ((), "refuse", "refuse")
    assert (policy.max_vmpl, policy.trust) == (0, "amd")


def test_what_is_said_can_be_read_again() -> None:
    assert Policy.parse(OWN.as_dict()) == OWN
    assert OWN.digest() == Policy.parse(OWN.as_dict()).digest()
    assert OWN.digest() != Policy().digest()
    assert (
        Policy.parse({"measurements": [B, A, A]}).digest()
        == Policy.parse({"measurements": [A, B]}).digest()
    )


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"unknown": 1},
        {"debug": "yes"},
        {"debug": True},
        {"max_vmpl": 4},
        {"max_vmpl": -1},
        {"max_vmpl": True},
        {"max_vmpl": "0"},
        {"min_guest_svn": 2**32},
        {"measurements": None},
        {"measurements": A},
        {"measurements": [A.upper()]},
        {"measurements": [A[:-2]]},
        {"measurements": [7]},
        {"measurements": [A] * 1025},
        {"host_data": [A]},
        {"keys": []},
        {"keys": ["none"]},
        {"keys": "vcek"},
        {"products": ["Rome"]},
        {"products": [["Milan"]]},
        {"min_tcb": 5},
        {"min_tcb": {"Rome": {}}},
        {"min_tcb": {"Milan": 5}},
        {"min_tcb": {"Milan": {"spl": 5}}},
        {"min_tcb": {"Milan": {"snp": 256}}},
        {"min_tcb": {"Milan": {"snp": 1.0}}},
        {"trust": "nvidia"},
        {"trust": "simulated:"},
        {"trust": "simulated:" + "A" * 64},
        {"trust": None},
    ],
)
def test_what_is_no_policy_is_refused(value: Any) -> None:
    with pytest.raises(Malformed) as caught:
        Policy.parse(value)
    assert caught.value.reason == "policy-malformed"


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"measurements": [A]},
        {"measurements": []},
        {"debug": "refuse"},
        {"debug": "allow"},
        {"migration": "refuse"},
        {"max_vmpl": 0},
        {"min_tcb": {"Milan": {"snp": 6, "tee": 1}, "Genoa": {"snp": 9}}},
        {"min_guest_svn": 3},
        {"author_keys": [A]},
        {"author_keys": []},
        {"id_keys": [B]},
        {"chip_ids": ["00" * 64]},
        {"host_data": None},
        {"products": ["Turin"]},
        {"trust": "amd"},
    ],
)
def test_a_caller_may_demand_more(value: dict[str, Any]) -> None:
    new = OWN.tightened(value)
    assert new == Policy.parse({**OWN.as_dict(), **value})


@pytest.mark.parametrize(
    "value",
    [
        {"measurements": ["cc" * 48]},
        {"measurements": [A, B, "cc" * 48]},
        {"migration": "allow"},
        {"max_vmpl": 3},
        {"min_tcb": {}},
        {"min_tcb": {"Milan": {"snp": 4}}},
        {"min_tcb": {"Milan": {"tee": 9}}},
        {"min_guest_svn": 1},
        {"author_keys": None},
        {"author_keys": [A, B]},
        {"keys": ["vcek", "vlek"]},
        {"trust": "simulated:" + "0" * 64},
    ],
)
def test_a_caller_may_not_demand_less(value: dict[str, Any]) -> None:
    with pytest.raises(Malformed) as caught:
        OWN.tightened(value)
    assert caught.value.reason == "policy-looser"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from([A, "allow"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
NAMES = st.sampled_from([*Policy().as_dict(), "other"])


@given(st.dictionaries(NAMES, JSON, max_size=4))
def test_any_object_is_a_policy_or_refused(value: dict[str, Any]) -> None:
    try:
        policy = Policy.parse(value)
    except Malformed as error:
        assert error.reason == "policy-malformed"
    else:
        assert Policy.parse(policy.as_dict()) == policy
