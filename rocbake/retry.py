"""Which failures of a transfer may pass, how long to wait for that, and what each is called."""

from __future__ import annotations

import email.utils
import http.client
import random
import socket
import time
from typing import TYPE_CHECKING, TypeVar

import requests
import tenacity
import urllib3

from rocbake import log
from rocbake.errors import FetchError
from rocbake.mirror import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_Answer = TypeVar("_Answer")

CONNECT_SECONDS = 15.0
SILENCE_SECONDS = 60.0
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 30.0
# A quota that opens later than this is a person's matter.
_LONGEST_RETRY_AFTER_SECONDS = 120.0
# Attempts that brought nothing; one that brought something starts the count anew, because a
# file of gigabytes over a line that breaks every minute does arrive.
_FRUITLESS_ATTEMPTS = 5
_MOST_ATTEMPTS = 100
_TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})
_GONE_STATUS = frozenset({404, 410})
_BROKEN = (
    requests.ConnectionError,
    requests.exceptions.ChunkedEncodingError,
    urllib3.exceptions.ProtocolError,
)
_UNCONNECTED = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ProxyError)
_HINTS = {
    401: "give the login in ~/.netrc",
    403: "give the login in ~/.netrc, or ask whether you may read it",
    429: "a quota is used up: wait, log in through ~/.netrc, or use a mirror of your own",
}


class DownloadError(FetchError):
    """One address did not give the file.

    Attributes:
        cause: What went wrong, without the address.
        status: The HTTP status, or None where no server answered.
        is_transient: Whether the same request may well succeed in a moment.
        is_unreachable: Whether no connection came about, so that the next request to the same
            host would fare no better.
        retry_after: Seconds the server asked to wait, or None.
    """

    def __init__(
        self,
        url: str,
        cause: str,
        *,
        status: int | None = None,
        is_transient: bool = False,
        is_unreachable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{redact(url)}: {cause}", hint=_HINTS.get(status or 0))
        self.cause = cause
        self.status = status
        self.is_transient = is_transient
        self.is_unreachable = is_unreachable
        self.retry_after = retry_after

    @property
    def is_gone(self) -> bool:
        """Whether the server is sure that it has no such file."""
        return self.status in _GONE_STATUS


def retry(
    url: str,
    call: Callable[[], _Answer],
    *,
    progress: Callable[[], int] = lambda: 0,
    sleep: Callable[[float], None] = time.sleep,
) -> _Answer:
    """Call until it succeeds, fails for good, or failed too often without any progress.

    Args:
        url: The address that is asked, for messages.
        call: The request. Failures of requests and urllib3 become a DownloadError.
        progress: Tells how far the work has come; growth starts the count of attempts anew.
        sleep: Waits that many seconds.

    Raises:
        DownloadError: That of the last attempt.
    """
    fruitless = 0
    furthest = progress()

    def attempt() -> _Answer:
        nonlocal fruitless, furthest
        try:
            return call()
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise _explain(url, error) from error
        finally:
            reached = progress()
            fruitless = 1 if reached > furthest else fruitless + 1
            furthest = max(furthest, reached)

    def is_enough(state: tenacity.RetryCallState) -> bool:
        return fruitless >= _FRUITLESS_ATTEMPTS or state.attempt_number >= _MOST_ATTEMPTS

    def wait(state: tenacity.RetryCallState) -> float:
        growing = _FIRST_WAIT_SECONDS * 2.0 ** (fruitless - 1) * random.uniform(1, 1.5)  # noqa: S311
        return max(min(growing, _LONGEST_WAIT_SECONDS), _failure(state).retry_after or 0.0)

    def announce(state: tenacity.RetryCallState) -> None:
        seconds = state.upcoming_sleep
        log.warn(f"{_failure(state)}; attempt {state.attempt_number + 1} in {seconds:.1f} s")

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(
            lambda error: isinstance(error, DownloadError) and error.is_transient
        ),
        stop=is_enough,
        wait=wait,
        sleep=sleep,
        before_sleep=announce,
        reraise=True,
    )
    return retrying(attempt)


def refusal(url: str, response: requests.Response) -> DownloadError:
    """Return the failure that an HTTP status means."""
    status = response.status_code
    cause = f"{status} {response.reason or ''}".rstrip()
    after = _retry_after(response) if status in _TRANSIENT_STATUS else None
    if after is not None and after > _LONGEST_RETRY_AFTER_SECONDS:
        return DownloadError(url, f"{cause}, to be asked again in {after:.0f} s", status=status)
    transient = status in _TRANSIENT_STATUS
    return DownloadError(url, cause, status=status, is_transient=transient, retry_after=after)


def mismatch(url: str, expected: str, got: str) -> DownloadError:
    """Return the failure that other bytes than the locked ones mean."""
    # Some hosts make these archives on demand, and their compressor changes now and then.
    generated = " (a generated archive? its bytes may change)" if "/archive/" in url else ""
    lines = f"is not the locked file{generated}\n      expected {expected}\n      got      {got}"
    return DownloadError(url, lines)


def _retry_after(response: requests.Response) -> float | None:
    value = response.headers.get("Retry-After", "")
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _explain(url: str, error: Exception) -> DownloadError:
    """Say in a few words what broke, and whether it may pass."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return refusal(url, error.response)
    chain = list(_chain(error))
    root = chain[-1]
    if isinstance(error, requests.exceptions.SSLError | urllib3.exceptions.SSLError):
        return DownloadError(url, f"no trusted connection: {root}")
    if isinstance(root, socket.gaierror):
        passing = root.errno == socket.EAI_AGAIN
        cause = f"host not found: {root.strerror}"
        return DownloadError(url, cause, is_transient=passing, is_unreachable=True)
    if isinstance(error, requests.ConnectTimeout):
        cause = f"no connection within {CONNECT_SECONDS:g} s"
        return DownloadError(url, cause, is_transient=True, is_unreachable=True)
    if isinstance(error, requests.Timeout | urllib3.exceptions.TimeoutError):
        return DownloadError(url, f"nothing came for {SILENCE_SECONDS:g} s", is_transient=True)
    cause = root.strerror if isinstance(root, OSError) and root.strerror else str(root)
    if isinstance(root, http.client.IncompleteRead):
        cause = "broke off before the end"
    return DownloadError(
        url,
        redact(cause),
        is_transient=isinstance(error, _BROKEN),
        is_unreachable=any(isinstance(link, _UNCONNECTED) for link in chain),
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Follow what wraps what, as requests wraps urllib3 and urllib3 wraps the socket's error."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        yield current
        seen.append(current)
        inner = [getattr(current, "reason", None), *current.args, current.__cause__]
        current = next((item for item in inner if isinstance(item, BaseException)), None)


def _failure(state: tenacity.RetryCallState) -> DownloadError:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, DownloadError)  # noqa: S101 - nothing else is retried
    return error
