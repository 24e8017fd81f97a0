"""What clients see while a backend dies and comes back: 32 clients, three backends, one killed.

Prints how long the dead one stays in the choice, how long it stays away after it is back, and
the clients' failures and times before, between and after. Run by `scripts/bench/failover`.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.dummies import DummyProcess
from tests.e2e.load import ask
from tests.e2e.process import serve
from tests.e2e.test_failover import INFERENCE, RELAY, states, table, until

CLIENTS = 32
PHASE = 3.0
HEALTH = 'health = { path = "/health", interval = 0.5, unhealthy = 1 }'


@dataclass(frozen=True)
class Asked:
    at: float
    seconds: float
    good: bool


async def client(port: int, number: int, end: float, asked: list[Asked]) -> None:
    turn = 0
    while (at := time.monotonic()) < end:
        turn += 1
        name = f"{number}.{turn}"
        value = {"user": name, "messages": [], "stream": turn % 2 == 0}
        reply = await ask(port, (RELAY, INFERENCE)[turn // 2 % 2], value)
        asked.append(Asked(at, time.monotonic() - at, reply.good))


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dummies = [DummyProcess(folder, each).start() for each in ("a", "b", "mortal")]
        mortal = dummies[2]
        routes = folder / "routes.toml"
        routes.write_text(table(dummies, HEALTH))
        node = serve("--home", folder / "home", "--routes", routes).listening()
        asked: list[Asked] = []
        begin = time.monotonic()
        end = begin + 3 * PHASE
        clients = [client(node.port, number, end, asked) for number in range(CLIENTS)]
        running = asyncio.gather(*clients)

        async def wait_for(state: str) -> float:
            since = time.monotonic()

            async def found() -> bool:
                return (await states(node)).get(mortal.url) == state

            await until(found)
            return time.monotonic() - since

        await asyncio.sleep(PHASE)
        killed = time.monotonic()
        mortal.kill()
        print(f"killed: out of the choice after {await wait_for('down'):.2f} s")
        await asyncio.sleep(max(0.0, killed + PHASE - time.monotonic()))
        mortal.start()
        back = time.monotonic()
        print(f"back: in the choice after {await wait_for('up'):.2f} s")
        await running
        twice = [
            n for n, runs in Counter(i for d in dummies for i in d.started).items() if runs > 1
        ]
        print(f"begun by two backends: {len(twice)}")
        print(f"{'':8} {'requests':>9} {'failed':>7} {'p50 ms':>7} {'p99 ms':>7}")
        for phase, low, high in (
            ("before", begin, killed),
            ("between", killed, back),
            ("after", back, end),
        ):
            those = [each for each in asked if low <= each.at < high]
            cuts = statistics.quantiles([each.seconds * 1000 for each in those], n=100)
            failed = sum(not each.good for each in those)
            print(f"{phase:8} {len(those):9} {failed:7} {cuts[49]:7.1f} {cuts[98]:7.1f}")
        node.stop()
        for dummy in dummies:
            dummy.kill()


if __name__ == "__main__":
    asyncio.run(main())
