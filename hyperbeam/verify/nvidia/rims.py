"""Finding RIMs: in a folder, in the cache, in NVIDIA's RIM service."""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
import stat
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from cryptography import x509

from ...codecs import json_reader
from ...errors import HyperbeamError
from ..checks import Malformed
from . import chain as chains
from . import rim as rims
from .cache import LONGEST
from .fetching import Fetcher, Question
from .refused import Refused
from .resources import Resources

MAX_FILES = 1024

Found = dict[str, "rims.Rim | Refused"]


class Finder:
    """Gets RIMs by their id and keeps those that verify up to `root`.

    Nothing is asked of the network but by `fetch`.
    """

    def __init__(self, resources: Resources, root: x509.Certificate, now: datetime) -> None:
        self._resources = resources
        self._root = root
        self._now = now
        self._root_id = chains.fingerprint(root)

    def at_hand(self, id: str, version: str) -> rims.Rim | Refused | None:
        """The RIM from folder or cache; None where neither has it."""
        cached = self._resources.cache.get(("rim-id", self._root_id, id), self._now)
        first: Refused | None = None
        for data in itertools.chain(self._in_folder(id, version), [cached] if cached else []):
            loaded = self.load(data)
            if isinstance(loaded, rims.Rim):
                return loaded
            first = first or loaded
        return first

    def fetch(self, ids: Iterable[str], fetcher: Fetcher) -> Found:
        """The RIMs from the service, all asked at once."""
        wanted = sorted(set(ids))
        base = self._resources.rim_url.rstrip("/")
        questions = [Question(f"{base}/v1/rim/{quote(id, safe='')}") for id in wanted]
        found: Found = {}
        for id, reply in zip(wanted, fetcher.all(questions), strict=True):
            if isinstance(reply, Refused):
                found[id] = reply
                continue
            try:
                data = _read_reply(reply, id)
            except Refused as refused:
                found[id] = refused
                continue
            found[id] = self.load(data)
            if isinstance(found[id], rims.Rim):
                key = ("rim-id", self._root_id, id)
                self._resources.cache.put(key, data, self._now + LONGEST)
        return found

    def load(self, data: bytes) -> rims.Rim | Refused:
        """The RIM in a file, from the cache where this very file verified before."""
        key = ("rim", self._root_id, hashlib.sha256(data).hexdigest())
        known = self._resources.cache.get(key, self._now)
        if isinstance(known, rims.Rim):
            return known
        try:
            loaded = rims.load(data, self._root)
        except Refused as refused:
            return refused
        except Malformed as error:
            return Refused(error.reason, error.detail)
        self._resources.cache.put(key, loaded)
        return loaded

    def _in_folder(self, id: str, version: str) -> Iterable[bytes]:
        """Files named after the id first, then those that say they are for `version`."""
        folder = self._resources.rim_folder
        if folder is None:
            return
        try:
            files = sorted(itertools.islice(folder.glob("*.swidtag"), MAX_FILES))
        except OSError:
            return
        vbios = id.removeprefix("NV_GPU_VBIOS_").lower()
        named = [f for f in files if f.stem == id or f.stem.lower().startswith(vbios)]
        for file in (*named, *(f for f in files if f not in named)):
            if file in named or self._version_of(file) == version.lower():
                data = _read_file(file)
                if data is not None:
                    yield data

    def _version_of(self, file: Path) -> str:
        """The version that a file claims to be for, read again only when the file changes."""
        try:
            status = file.stat()
        except OSError:
            return ""
        key = ("rim-file", str(file), str(status.st_size), str(status.st_mtime_ns))
        known = self._resources.cache.get(key, self._now)
        if known is None:
            try:
                known = rims.version_of(_read_file(file) or b"").lower()
            except Malformed:
                known = ""
            self._resources.cache.put(key, known)
        return str(known)


def _read_file(file: Path) -> bytes | None:
    try:
        # A device or a pipe would never end.
        if not stat.S_ISREG(file.stat().st_mode):
            return None
        with file.open("rb") as opened:
            data = opened.read(rims.MAX_RIM + 1)
    except OSError:
        return None
    return data if len(data) <= rims.MAX_RIM else None


def _read_reply(reply: bytes, id: str) -> bytes:
    """The RIM in the service's reply `{"id", "rim": base64, "sha256": hex, ...}`."""
    try:
        value = json_reader.parse(reply)
    except HyperbeamError:
        value = None
    if not isinstance(value, dict) or not isinstance(value.get("rim"), str):
        raise Refused("reply-malformed", "the RIM service's reply is not one")
    if value.get("id") != id:
        raise Refused("wrong-id", f"the RIM service answered with another RIM than {id}")
    try:
        data = base64.b64decode("".join(value["rim"].split()), validate=True)
    except (binascii.Error, ValueError):
        raise Refused("reply-malformed", "the RIM service's RIM is not base64") from None
    digest = hashlib.sha256(data).digest()
    if value.get("sha256") not in (digest.hex(), base64.b64encode(digest).decode()):
        raise Refused("sha256-mismatch", "the RIM is not the one that the service's digest is of")
    return data
