"""One address to one verified file: resumed where it broke off, retried only where that can help.

It knows nothing of sources, mirrors or the cache's shape.
"""

from __future__ import annotations

import hashlib
import http
import json
import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit
from urllib.request import url2pathname

import requests
import tenacity

from rocbake.cache import writing
from rocbake.digest import sha256_bytes
from rocbake.errors import FetchError
from rocbake.mirror import redact
from rocbake.retry import CONNECT_SECONDS, SILENCE_SECONDS, DownloadError, mismatch, refusal, retry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_CHUNK_BYTES = 1 << 16


class StoppedError(FetchError):
    """The download was asked to stop; what has come is kept."""


@dataclass(frozen=True)
class Download:
    """What arrived: bare hexadecimal SHA-256 and size in bytes."""

    sha256: str
    size: int


@dataclass
class _Part:
    """The beginning of a file on the disk, and the hash of it so far."""

    path: Path
    size: int = 0
    digest: Any = field(default_factory=hashlib.sha256)
    furthest: int = 0
    is_joined: bool = False

    @classmethod
    def load(cls, path: Path) -> _Part:
        part = cls(path)
        if path.exists():
            with path.open("rb") as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    part.grow(chunk)
        return part

    def grow(self, chunk: bytes) -> None:
        self.digest.update(chunk)
        self.size += len(chunk)
        self.furthest = max(self.furthest, self.size)

    @property
    def origin_path(self) -> Path:
        return self.path.with_suffix(".json")

    def validator(self, url: str) -> str | None:
        """Return what the server called this version of the file, if the address is the same."""
        try:
            origin = json.loads(self.origin_path.read_text(encoding="utf-8"))
            same = origin["url"] == sha256_bytes(url.encode())
            return str(origin["validator"]) if same else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def restart(self, url: str = "", validator: str | None = None) -> None:
        self.path.write_bytes(b"")
        self.size, self.digest, self.is_joined = 0, hashlib.sha256(), False
        if validator is None:
            self.origin_path.unlink(missing_ok=True)
        else:
            # The address may hold a secret, so its digest stands for it.
            origin = {"url": sha256_bytes(url.encode()), "validator": validator}
            self.origin_path.write_text(json.dumps(origin), encoding="utf-8")


class Downloader:
    """Downloads over one kept connection a host; one instance a thread.

    Args:
        stop: Set from outside to end waits and transfers within a chunk.
        on_bytes: Told how many bytes more there are, or fewer after a restart.
        sleep: Waits that many seconds between attempts; by default until `stop` at most.
    """

    def __init__(
        self,
        *,
        stop: threading.Event | None = None,
        on_bytes: Callable[[int], None] | None = None,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._stop = stop if stop is not None else threading.Event()
        self._on_bytes = on_bytes if on_bytes is not None else lambda _: None
        self.sleep = sleep if sleep is not None else tenacity.sleep_using_event(self._stop)
        self.session = requests.Session()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def get(
        self, url: str, path: Path, *, sha256: str | None = None, size: int | None = None
    ) -> Download:
        """Download to a file, going on from what is already in it.

        Args:
            url: An http, https or file address.
            path: The file to write; beside it, with the suffix `.json`, lies where its beginning
                came from. On failure both are kept, for the next attempt.
            sha256: What the digest must be. None accepts any, and then a beginning is gone on
                with only where the server proves that the file is the same.
            size: What the size in bytes must be, if known.

        Raises:
            DownloadError: The address did not give that file.
            FetchError: The file cannot be written.
            StoppedError: `stop` was set.
        """
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            part = _Part.load(path)
        self._on_bytes(part.size)
        try:
            self._complete(url, part, sha256=sha256, size=size)
        except BaseException:
            self._on_bytes(-part.size)
            raise
        with writing(path):
            # That of no bytes is complete before anything is written.
            path.touch()
            part.origin_path.unlink(missing_ok=True)
        return Download(part.digest.hexdigest(), part.size)

    def _complete(self, url: str, part: _Part, *, sha256: str | None, size: int | None) -> None:
        if size is not None and part.size >= size and part.digest.hexdigest() != sha256:
            self._restart(part)
        is_second = False
        while sha256 is None or part.digest.hexdigest() != sha256:
            retry(
                url,
                lambda: self._attempt_unless_stopped(url, part, sha256=sha256, size=size),
                progress=lambda: part.furthest,
                sleep=self.sleep,
            )
            found, got, was_joined = part.digest.hexdigest(), part.size, part.is_joined
            if sha256 in (None, found):
                return
            self._restart(part)
            if is_second or not was_joined:
                raise mismatch(url, f"sha256 {sha256}", f"sha256 {found} ({got} bytes)")
            # Put together from pieces, it may be none of this server's fault: once more.
            is_second = True

    def _restart(self, part: _Part, url: str = "", validator: str | None = None) -> None:
        self._on_bytes(-part.size)
        with writing(part.path):
            part.restart(url, validator)

    def _attempt_unless_stopped(
        self, url: str, part: _Part, *, sha256: str | None, size: int | None
    ) -> None:
        try:
            self._attempt(url, part, sha256=sha256, size=size)
        except Exception as error:
            if self._stop.is_set():
                raise StoppedError(f"stopped: {redact(url)}") from error
            raise

    def _attempt(self, url: str, part: _Part, *, sha256: str | None, size: int | None) -> None:
        """Append to the part until the body ends; raise where that was not the file's end."""
        if self._stop.is_set():
            raise StoppedError(f"stopped: {redact(url)}")
        try:
            scheme = urlsplit(url).scheme
        except ValueError as error:
            raise DownloadError(url, f"not an address: {error}") from error
        if scheme == "file":
            self._restart(part)
            self._append(part, _read_local(url), url=url, size=size)
            return
        if scheme not in ("http", "https"):
            raise DownloadError(url, "only http, https and file addresses can be downloaded")
        headers = {"Accept-Encoding": "identity"}
        validator = part.validator(url)
        # With a digest to judge by, any server's rest of the file will do.
        if part.size and (validator or sha256):
            headers["Range"] = f"bytes={part.size}-"
            if validator:
                headers["If-Range"] = validator
        with self.session.get(
            url, headers=headers, stream=True, timeout=(CONNECT_SECONDS, SILENCE_SECONDS)
        ) as response:
            total = self._begin(part, response, url=url, size=size, validator=validator)
            self._append(part, _read(response), url=url, size=total)

    def _begin(
        self,
        part: _Part,
        response: requests.Response,
        *,
        url: str,
        size: int | None,
        validator: str | None,
    ) -> int | None:
        """Judge the answer's head, and return the whole file's size as far as anyone knows it."""
        status = response.status_code
        if status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and part.size:
            self._restart(part)
            raise DownloadError(url, "the server has less than was there", is_transient=True)
        if status not in (http.HTTPStatus.OK, http.HTTPStatus.PARTIAL_CONTENT):
            raise refusal(url, response)
        is_rest = status == http.HTTPStatus.PARTIAL_CONTENT
        start, total = _content_range(response) if is_rest else (0, _content_length(response))
        if size is not None and total not in (None, size):
            raise mismatch(url, f"{size} bytes", f"{total} bytes")
        new_validator = _validator(response)
        if not is_rest:
            self._restart(part, url, new_validator)
        elif start != part.size or (validator and new_validator not in (None, validator)):
            self._restart(part)
            raise DownloadError(url, "the file changed on the server", is_transient=True)
        else:
            part.is_joined = True
        return size if size is not None else total

    def _append(self, part: _Part, body: Iterator[bytes], *, url: str, size: int | None) -> None:
        with writing(part.path):
            # Unbuffered: what a killed process had received is there for the next one.
            target = part.path.open("ab", buffering=0)
        with target:
            for chunk in body:
                with writing(part.path):
                    rest = memoryview(chunk)
                    while rest:
                        rest = rest[target.write(rest) :]
                part.grow(chunk)
                self._on_bytes(len(chunk))
                if size is not None and part.size > size:
                    break
                if self._stop.is_set():
                    raise StoppedError(f"stopped: {redact(url)}")
        if size is not None and part.size > size:
            got = part.size
            self._restart(part)
            raise mismatch(url, f"{size} bytes", f"at least {got} bytes")
        if size is not None and part.size < size:
            cause = f"broke off after {part.size} of {size} bytes"
            raise DownloadError(url, cause, is_transient=urlsplit(url).scheme != "file")


def _read(response: requests.Response) -> Iterator[bytes]:
    # read1 hands out what has arrived, so that a cut loses nothing; undecoded, because the
    # digest is of the bytes as they are stored.
    while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=False):
        yield chunk


def _read_local(url: str) -> Iterator[bytes]:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise DownloadError(url, "a file address names no other machine")
    try:
        with open(url2pathname(parts.path), "rb") as stream:  # noqa: PTH123 - a name, not a path yet
            while chunk := stream.read(_CHUNK_BYTES):
                yield chunk
    except FileNotFoundError as error:
        raise DownloadError(url, "no such file", status=http.HTTPStatus.NOT_FOUND) from error
    except OSError as error:
        raise DownloadError(url, str(error.strerror)) from error


def _validator(response: requests.Response) -> str | None:
    """Return what If-Range may hold: a strong ETag, else the time of the last change."""
    etag = response.headers.get("ETag", "")
    if etag.startswith('"'):
        return etag
    return response.headers.get("Last-Modified")


def _content_range(response: requests.Response) -> tuple[int | None, int | None]:
    """Return the first byte's offset and the whole size, each None where it is not told."""
    span, _, total = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
    start = span.partition("-")[0]
    return _number(start), _number(total)


def _content_length(response: requests.Response) -> int | None:
    return _number(response.headers.get("Content-Length", ""))


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None
