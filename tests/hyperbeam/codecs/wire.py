"""The captured requests of tests/fixtures/wire."""

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "fixtures" / "wire"
# What the HTTP client added to the message that it sent.
TRANSPORT = ("te", "host", "connection", "content-length", "accept-bundle")


def request(number: str) -> tuple[dict[str, str], bytes]:
    """Headers and body of a captured request."""
    head, _, body = (FOLDER / f"req-{number}.raw").read_bytes().partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")[1:]
    return dict(line.split(": ", 1) for line in lines), body
