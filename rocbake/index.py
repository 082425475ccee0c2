"""The Python package index: which one it is, and where a file of a project lies on it."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from rocbake.errors import FetchError
from rocbake.retry import CONNECT_SECONDS, SILENCE_SECONDS, DownloadError, mismatch, retry
from rocbake.run import run

if TYPE_CHECKING:
    from collections.abc import Callable

    import requests
    from pypi_simple import DistributionPackage

    from rocbake.source import Pypi

_PIP_SECONDS = 30.0


def address() -> str:
    """Return the index: `PIP_INDEX_URL`, else pip's own setting, else the public one."""
    import pypi_simple  # noqa: PLC0415 - costs 100 ms that most runs have no use for

    return os.environ.get("PIP_INDEX_URL") or _from_pip() or pypi_simple.PYPI_SIMPLE_ENDPOINT


@functools.cache
def _from_pip() -> str:
    """Ask pip once a process; where it is not installed it has no setting."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    return run(command, timeout=_PIP_SECONDS, check=False, error=FetchError).stdout.strip()


def files(
    project: str, *, session: requests.Session, sleep: Callable[[float], None]
) -> list[DistributionPackage]:
    """Return every file of a project that the index lists.

    Args:
        project: Its name, in any spelling.
        session: What to ask over.
        sleep: Waits between attempts.

    Raises:
        DownloadError: The index cannot be asked or does not know the project.
    """
    import pypi_simple  # noqa: PLC0415 - as above

    client = pypi_simple.PyPISimple(address(), session=session)
    url = client.get_project_url(project)
    try:
        if urlsplit(url).scheme == "file":
            path = Path(url2pathname(urlsplit(url).path)) / "index.html"
            return pypi_simple.ProjectPage.from_html(project, path.read_bytes(), url).packages
        return retry(
            url,
            lambda: client.get_project_page(project, timeout=(CONNECT_SECONDS, SILENCE_SECONDS)),
            sleep=sleep,
        ).packages
    except (pypi_simple.NoSuchProjectError, FileNotFoundError) as error:
        raise DownloadError(url, "the index has no such project", status=404) from error
    except (
        pypi_simple.UnsupportedContentTypeError,
        pypi_simple.UnsupportedRepoVersionError,
        OSError,
        ValueError,
    ) as error:
        raise DownloadError(url, f"is not a package index's page: {error}") from error


def find(source: Pypi, *, session: requests.Session, sleep: Callable[[float], None]) -> str:
    """Return the address of a locked file.

    Raises:
        DownloadError: The index does not list it, or lists it with another digest.
    """
    listed = files(source.project, session=session, sleep=sleep)
    for file in listed:
        if file.filename == source.file_name:
            digest = file.digests.get("sha256", source.sha256)
            if digest != source.sha256:
                raise mismatch(file.url, f"sha256 {source.sha256}", f"sha256 {digest}")
            return file.url
    raise DownloadError(address(), f"the index does not list {source.file_name}", status=404)
