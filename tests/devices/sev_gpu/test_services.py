"""Verification over real sockets: both of NVIDIA's services, as they should be and not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from devices.sev_gpu.simulate import Simulator

from .pki import Behaviour
from .world import World, running


@pytest.fixture
def world() -> Iterator[World]:
    with running(Simulator()) as found:
        yield found


@pytest.mark.parametrize("arch", ["HOPPER", "BLACKWELL"])
def test_all_is_good_but_the_root(arch: str) -> None:
    simulator = Simulator(gpus=2, arch=arch)
    with running(simulator) as world:
        verdict = world.verify()
    assert [check.reason for check in verdict.checks if check.result != "pass"] == ["simulated"]
    assert not verdict.verified
    assert (verdict.trust, verdict.freshness, verdict.reason) == ("simulated", "fresh", "simulated")
    assert (verdict.revocation, verdict.measurements, verdict.rims) == ("good", "success", "valid")
    assert verdict.compared == 66
    assert all("SIMULATED" in claims["hwmodel"] for claims in verdict.claims)
    assert sorted(world.rims.asked) == sorted(f"/v1/rim/{id}" for id in simulator.rims())


@pytest.mark.parametrize("service", ["rims", "ocsp"])
def test_a_reply_that_ends_too_early(world: World, service: str) -> None:
    getattr(world, service).behaviour = "cut"
    what = {"rims": "driver-rim", "ocsp": "ocsp"}[service]
    assert world.verify().reason == f"{what}-unreachable"


@pytest.mark.parametrize("service", ["rims", "ocsp"])
@pytest.mark.parametrize("behaviour", ["silent", "drips-head"])
def test_the_deadline_ends_what_no_time_limit_of_a_reply_does(
    world: World, service: str, behaviour: Behaviour
) -> None:
    if service == "ocsp":
        assert world.verify(ocsp="skip").measurements == "success"
    world.deadline = 0.5
    getattr(world, service).behaviour = behaviour
    assert world.verify().reason == {"rims": "driver-rim-timeout", "ocsp": "ocsp-timeout"}[service]
