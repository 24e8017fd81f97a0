"""Policies: read strictly, and tightened only."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.nvidia import Policy
from hyperbeam.verify.nvidia.policy import driver_at_least

SIMULATED = "simulated:" + "ab" * 32


def test_strict_by_default() -> None:
    policy = Policy.parse({})
    assert policy == Policy()
    assert policy.as_dict() == {
        "rims": "require",
        "rim_clock": None,
        "ocsp": "require",
        "modes": ["MPT", "PPCIE", "SPT"],
        "gpu_count": None,
        "ueids": None,
        "min_driver": None,
        "trust": "nvidia",
    }


def test_round_trip_and_digest() -> None:
    value = {
        "rims": "allow-missing",
        "rim_clock": 1717200000000,
        "ocsp": "cached",
        "modes": ["SPT"],
        "gpu_count": 8,
        "ueids": ["2", "1"],
        "min_driver": "550.90.07",
        "trust": SIMULATED,
    }
    policy = Policy.parse(value)
    assert policy.as_dict() == {**value, "ueids": ["1", "2"]}
    assert Policy.parse(policy.as_dict()) == policy
    assert Policy.parse(policy.as_dict()).digest() == policy.digest()
    assert policy.digest() != Policy().digest()
    assert Policy.parse({"modes": ["SPT", "MPT"]}) == Policy.parse({"modes": ["MPT", "SPT"]})


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "strict",
        {"rim": "require"},
        {1: 2},
        {"rims": "maybe"},
        {"rims": None},
        {"ocsp": True},
        {"ocsp": []},
        {"modes": []},
        {"modes": ["spt"]},
        {"modes": "SPT"},
        {"modes": [["SPT"]]},
        {"modes": None},
        {"gpu_count": 0},
        {"gpu_count": 17},
        {"gpu_count": True},
        {"gpu_count": "1"},
        {"ueids": []},
        {"ueids": [1]},
        {"ueids": ["x"]},
        {"min_driver": "new"},
        {"min_driver": "550"},
        {"min_driver": 550.9},
        {"rim_clock": -1},
        {"rim_clock": 2**53},
        {"rim_clock": "2024-06-01"},
        {"trust": "any"},
        {"trust": "simulated:"},
        {"trust": "simulated:" + "AB" * 32},
        {"trust": None},
    ],
)
def test_malformed(value: Any) -> None:
    with pytest.raises(Malformed) as error:
        Policy.parse(value)
    assert error.value.reason == "policy-malformed"


@pytest.mark.parametrize(
    ("own", "asked"),
    [
        ({}, {}),
        ({"rims": "allow-missing"}, {"rims": "require"}),
        ({"ocsp": "skip"}, {"ocsp": "cached"}),
        ({"ocsp": "cached"}, {"ocsp": "require"}),
        ({"rim_clock": 5}, {"rim_clock": None}),
        ({"rim_clock": 5}, {"rim_clock": 5}),
        ({}, {"modes": ["SPT"]}),
        ({}, {"gpu_count": 2}),
        ({"gpu_count": 2}, {"gpu_count": 2}),
        ({}, {"ueids": ["1"]}),
        ({"ueids": ["1", "2"]}, {"ueids": ["2"]}),
        ({}, {"min_driver": "1.2"}),
        ({"min_driver": "550.90"}, {"min_driver": "550.90.07"}),
        ({"trust": SIMULATED}, {"trust": "nvidia"}),
        ({"trust": SIMULATED}, {"trust": SIMULATED}),
    ],
)
def test_tighter(own: dict[str, Any], asked: dict[str, Any]) -> None:
    assert Policy.parse(own).tightened(asked) == Policy.parse({**own, **asked})


@pytest.mark.parametrize(
    ("own", "asked"),
    [
        ({}, {"rims": "allow-missing"}),
        ({}, {"ocsp": "cached"}),
        ({"ocsp": "cached"}, {"ocsp": "skip"}),
        ({}, {"rim_clock": 5}),
        ({"rim_clock": 5}, {"rim_clock": 4}),
        ({"rim_clock": 5}, {"rim_clock": 6}),
        ({"modes": ["SPT"]}, {"modes": ["SPT", "MPT"]}),
        ({"modes": ["SPT"]}, {"modes": ["MPT"]}),
        ({"gpu_count": 2}, {"gpu_count": 1}),
        ({"gpu_count": 2}, {"gpu_count": None}),
        ({"ueids": ["1"]}, {"ueids": ["1", "2"]}),
        ({"ueids": ["1"]}, {"ueids": None}),
        ({"min_driver": "550.90"}, {"min_driver": "550.54"}),
        ({"min_driver": "550.90"}, {"min_driver": None}),
        ({}, {"trust": SIMULATED}),
        ({"trust": SIMULATED}, {"trust": "simulated:" + "00" * 32}),
    ],
)
def test_looser(own: dict[str, Any], asked: dict[str, Any]) -> None:
    with pytest.raises(Malformed) as error:
        Policy.parse(own).tightened(asked)
    assert error.value.reason == "policy-looser"


def test_driver_versions_are_numbers() -> None:
    assert driver_at_least("550.100", "550.54.15")
    assert driver_at_least("550.54.15", "550.54.15")
    assert not driver_at_least("550.54", "550.54.15")
    assert not driver_at_least("99.0", "550.0")


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    )
    | st.dictionaries(
        st.sampled_from(sorted(Policy().as_dict())),
        st.none() | st.integers() | st.text(max_size=8) | st.lists(st.text(max_size=4)),
    )
)
def test_anything_is_read_or_refused(value: Any) -> None:
    try:
        policy = Policy.parse(value)
    except Malformed:
        return
    assert Policy.parse(policy.as_dict()) == policy
