"""The first fetch of a source: what came is recorded, so that nothing else is taken afterwards."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pydantic import TypeAdapter, ValidationError

from rocbake import git, index, log
from rocbake.digest import sha256_bytes
from rocbake.download import Downloader
from rocbake.errors import FetchError, LockError
from rocbake.mirror import Mirrors, redact
from rocbake.source import FileName, Git, Pypi, Url

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage

    from rocbake.cache import Cache
    from rocbake.retry import DownloadError


def lock_url(
    url: str, *, cache: Cache, sha256: str | None = None, file_name: str | None = None
) -> Url:
    """Download an address and record what it holds.

    Args:
        url: An http, https or file address.
        cache: Where the file goes.
        sha256: What it must be; None takes whatever is there.
        file_name: What to call it; None takes the last part of the address.

    Raises:
        LockError: The address ends in nothing that could be the file's name.
        FetchError: The download failed, gave something else, or the cache cannot be written.
    """
    name = file_name if file_name is not None else unquote(urlsplit(url).path.rpartition("/")[2])
    try:
        TypeAdapter(FileName).validate_python(name)
    except ValidationError as error:
        raise LockError(f"{redact(url)}: {name!r} is no file name; give `file_name`") from error
    if "/archive/" in url:
        log.warn(
            f"{redact(url)}: a generated archive? Its bytes may change; a release file or a git "
            "source does not"
        )
    found, size = _download(url, cache=cache, sha256=sha256)
    return Url(sha256=found, size=size, url=url, file_name=name)


def lock_git(url: str, commit: str, *, cache: Cache, mirrors: Mirrors) -> Git:
    """Fetch one commit, pack its tree, and record the tar and the repository's own address.

    Args:
        url: Where the repository is.
        commit: The full commit id; names of branches and tags move, and are refused.
        cache: Where the tar goes.
        mirrors: Where it may come from instead; the record does not say which it was.

    Raises:
        LockError: The commit is not a full id.
        FetchError: The commit could not be had, or the cache cannot be written.
    """
    try:
        wish = Git(sha256="0" * 64, size=0, url=url, commit=commit)
    except ValidationError as error:
        raise LockError(f"{redact(url)}: {commit!r} is not a full commit id") from error
    answers: list[DownloadError] = []
    tar = git.bring(url, commit, cache=cache, mirrors=mirrors, sleep=time.sleep, answers=answers)
    if tar is None:
        raise _unavailable(wish, answers)
    return wish.model_copy(update={"sha256": tar.sha256, "size": tar.size})


def lock_pypi(project: str, version: str, file_name: str | None = None, *, cache: Cache) -> Pypi:
    """Download a file of a project's release from the package index, and record it.

    Args:
        project: The project's name.
        version: The release, written as the index writes it.
        file_name: Which of its files; None takes the source distribution.
        cache: Where the file goes.

    Raises:
        LockError: The index has no such file.
        FetchError: The download failed, or the cache cannot be written.
    """
    with Downloader() as downloader:
        listed = index.files(project, session=downloader.session, sleep=downloader.sleep)
    file = _choose(listed, project=project, version=version, file_name=file_name)
    if file.is_yanked:
        log.warn(
            f"{file.filename} was withdrawn by its authors: {file.yanked_reason or 'no reason'}"
        )
    expected = file.digests.get("sha256")
    sha256, size = _download(file.url, cache=cache, sha256=expected)
    return Pypi(sha256=sha256, size=size, project=project, version=version, file_name=file.filename)


def _unavailable(wish: Git, answers: list[DownloadError]) -> FetchError:
    """Return the answer of the one place, or an error with those of all of them."""
    if len(answers) == 1:
        return answers[0]
    lines = [f"{redact(wish.label)} could not be had:", *(f"  {answer}" for answer in answers)]
    hints = [answer.hint for answer in answers if answer.hint]
    return FetchError("\n".join(lines), hint=hints[0] if hints else None)


def _choose(
    listed: list[DistributionPackage], *, project: str, version: str, file_name: str | None
) -> DistributionPackage:
    release = [file for file in listed if file.version == version]
    if not release:
        versions = sorted({file.version for file in listed if file.version})
        raise LockError(f"{project} {version} is not on the index, which has {', '.join(versions)}")
    for file in release:
        if file.filename == file_name or (file_name is None and file.package_type == "sdist"):
            return file
    wanted = file_name or "source distribution"
    names = "\n".join(f"  {file.filename}" for file in release)
    raise LockError(f"{project} {version} has no {wanted} on the index, only\n{names}")


def _download(url: str, *, cache: Cache, sha256: str | None = None) -> tuple[str, int]:
    # What the file will be called is not known yet, so the address names its beginning.
    key = sha256_bytes(url.encode())
    with cache.lock(key):
        part_path = cache.part_path(key)
        with Downloader() as downloader:
            got = downloader.get(url, part_path, sha256=sha256)
        cache.accept(part_path, got.sha256)
    return got.sha256, got.size
