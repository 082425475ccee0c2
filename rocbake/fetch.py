"""Every locked source into the cache: from vaults, from mirrors, from where the source says."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rocbake import git, index, log
from rocbake.cache import room
from rocbake.download import Downloader
from rocbake.errors import FetchError
from rocbake.mirror import redact
from rocbake.record import lock_git, lock_pypi, lock_url
from rocbake.retry import DownloadError
from rocbake.source import Deb, Git, Pypi, Url

__all__ = ["fetch", "lock_git", "lock_pypi", "lock_url"]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from rocbake.cache import Cache
    from rocbake.mirror import Mirrors
    from rocbake.source import Source

    _Waiting = queue.SimpleQueue[list[Source]]
    _Ended = queue.SimpleQueue[BaseException | None]


def fetch(
    sources: Sequence[Source],
    *,
    cache: Cache,
    mirrors: Mirrors,
    snapshot: str | None = None,
    offline: bool = False,
    jobs: int = 8,
    thorough: bool = False,
) -> dict[str, Path]:
    """Bring every source into the cache, and return where each is, by its SHA-256.

    Args:
        sources: What to bring; several may be of the same bytes, which then come once.
        cache: Where to.
        mirrors: Where from.
        snapshot: The lock's archive timestamp, for mirrors that keep the past.
        offline: Whether what is not in the cache is an error at once.
        jobs: How many downloads may run at the same time.
        thorough: Whether files that are in the cache are read again, and damaged ones replaced;
            otherwise only their sizes are looked at.

    Raises:
        FetchError: With every source that could not be had and what each place answered; or the
            cache cannot be written or has no room.
    """
    start = time.monotonic()
    wanted: dict[str, list[Source]] = {}
    for source in sources:
        wanted.setdefault(source.sha256, []).append(source)
    missing = _missing(list(wanted.values()), cache=cache, jobs=jobs, thorough=thorough)
    if missing:
        if offline:
            raise _offline([group[0] for group in missing], total=len(wanted), cache=cache)
        _check_room([group[0] for group in missing], cache=cache)
        _Run(cache, mirrors, snapshot).all(missing, jobs=jobs)
    size = _megabytes(sum(group[0].size for group in missing))
    seconds = time.monotonic() - start
    there = f"{len(wanted) - len(missing)} already in the cache"
    log.say(f"  fetched {len(missing)} of {len(wanted)} sources, {size}, {seconds:.1f} s; {there}")
    return {sha256: cache.path(sha256) for sha256 in wanted}


class _UnavailableError(Exception):
    """No place gave the source; `answers` is what each said, in order."""

    def __init__(self, source: Source, answers: list[DownloadError]) -> None:
        super().__init__(source, answers)
        self.source = source
        self.answers = answers

    @property
    def is_gone(self) -> bool:
        return bool(self.answers) and all(answer.is_gone for answer in self.answers)


@dataclass
class _Run:
    """One run of downloads, and what its threads share."""

    cache: Cache
    mirrors: Mirrors
    snapshot: str | None
    stop: threading.Event = field(default_factory=threading.Event)
    # Hosts that no connection could be made to: asked once, not once a file.
    unreachable: set[str] = field(default_factory=set)
    on_bytes: Callable[[int], None] = lambda _: None

    def all(self, groups: list[list[Source]], *, jobs: int) -> None:
        """Bring every group, and end the threads however this ends."""
        files: _Waiting = queue.SimpleQueue()
        trees: _Waiting = queue.SimpleQueue()
        ended: _Ended = queue.SimpleQueue()
        # The largest first, so that none of them is the last one everything waits for.
        for group in sorted(groups, key=lambda group: -group[0].size):
            (trees if any(isinstance(one, Git) for one in group) else files).put(group)
        failures: list[_UnavailableError] = []
        with log.progress() as progress:
            bar = progress.add_task("", total=sum(group[0].size for group in groups))
            self.on_bytes = lambda count: progress.advance(bar, count)
            try:
                for _ in range(min(jobs, files.qsize())):
                    # Daemons: a person's Ctrl-C does not wait for a server that says nothing.
                    threading.Thread(target=self._work, args=(files, ended), daemon=True).start()
                # Programs run in this thread, because what interrupts it ends them.
                self._work(trees, ended)
                for count in range(len(groups)):
                    progress.update(bar, description=f"{count}/{len(groups)} sources")
                    error = ended.get()
                    if isinstance(error, _UnavailableError):
                        failures.append(error)
                    elif error is not None:
                        raise error
            finally:
                self.stop.set()
        if failures:
            raise _report(failures, total=len(groups))

    def _work(self, waiting: _Waiting, ended: _Ended) -> None:
        with Downloader(stop=self.stop, on_bytes=self.on_bytes) as downloader:
            while not self.stop.is_set():
                try:
                    group = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    self._bring(group, downloader)
                except Exception as error:  # noqa: BLE001 - raised again by the one that waits
                    ended.put(error)
                else:
                    ended.put(None)

    def _bring(self, group: list[Source], downloader: Downloader) -> None:
        source = group[0]
        with self.cache.lock(source.sha256):
            if self.cache.has(source.sha256, source.size):
                return  # another process was faster
            self.cache.quarantine(source.sha256)
            answers: list[DownloadError] = []
            if self._download(group, downloader, answers):
                return
            for tree in group:
                if isinstance(tree, Git) and self._pack(tree, downloader, answers):
                    return
            raise _UnavailableError(source, answers)

    def _download(
        self, group: list[Source], downloader: Downloader, answers: list[DownloadError]
    ) -> bool:
        """Try each address in order until one gives the file; keep what the others answered."""
        sha256, size = group[0].sha256, group[0].size
        part_path = self.cache.part_path(sha256)
        for url in self._places(group, downloader, answers):
            host = urlsplit(url).netloc
            if host and host in self.unreachable:
                answers.append(DownloadError(url, "the host could not be reached"))
                continue
            try:
                downloader.get(url, part_path, sha256=sha256, size=size)
            except DownloadError as error:
                answers.append(error)
                if error.is_unreachable:
                    self.unreachable.add(host)
            else:
                self.cache.accept(part_path, sha256)
                for answer in answers:
                    if not answer.is_gone:
                        log.warn(f"{answer}\n  it came from another place")
                return True
        return False

    def _pack(self, tree: Git, downloader: Downloader, answers: list[DownloadError]) -> bool:
        tar = git.bring(
            tree.url,
            tree.commit,
            cache=self.cache,
            mirrors=self.mirrors,
            sleep=downloader.sleep,
            answers=answers,
            sha256=tree.sha256,
        )
        if tar is None:
            return False
        self.on_bytes(tree.size)
        return True

    def _places(
        self, group: list[Source], downloader: Downloader, answers: list[DownloadError]
    ) -> Iterator[str]:
        yield from self.mirrors.blob_urls(group[0].sha256)
        for source in group:
            if isinstance(source, Deb):
                yield from self.mirrors.archive_urls(
                    source.archive, source.path, snapshot=self.snapshot
                )
            elif isinstance(source, Url):
                yield source.url
            elif isinstance(source, Pypi):
                try:
                    yield index.find(source, session=downloader.session, sleep=downloader.sleep)
                except DownloadError as error:
                    answers.append(error)


def _missing(
    groups: list[list[Source]], *, cache: Cache, jobs: int, thorough: bool
) -> list[list[Source]]:
    here = [group for group in groups if cache.has(group[0].sha256, group[0].size)]
    sound = {group[0].sha256 for group in here}
    if thorough:
        with ThreadPoolExecutor(jobs) as pool:
            verdicts = pool.map(cache.verify, [group[0].sha256 for group in here])
            for group, is_sound in zip(here, verdicts, strict=True):
                if not is_sound:
                    cache.quarantine(group[0].sha256)
                    sound.discard(group[0].sha256)
    return [group for group in groups if group[0].sha256 not in sound]


def _check_room(sources: list[Source], *, cache: Cache) -> None:
    needed = 0
    for source in sources:
        part_path = cache.part_path(source.sha256)
        begun = part_path.stat().st_size if part_path.exists() else 0
        needed += max(0, source.size - begun)
    mount, free = room(cache.root)
    if needed > free:
        raise FetchError(
            f"no room for {_megabytes(needed)} of sources in {cache.root}\n"
            f"  file system {mount}, {_megabytes(free)} free",
            hint="invoke clean, or set ROCBAKE_CACHE to a folder with room",
        )


def _offline(missing: list[Source], *, total: int, cache: Cache) -> FetchError:
    size = sum(source.size for source in missing)
    count = f"{len(missing)} of {total} sources, {_megabytes(size)},"
    lines = [f"offline, and {count} are not in the cache {cache.root}:"]
    lines += [f"  {redact(source.label)}, {_megabytes(source.size)}" for source in missing]
    return FetchError("\n".join(lines), hint="invoke fetch")


def _report(failures: list[_UnavailableError], *, total: int) -> FetchError:
    """Put all failures into one error: what, where it was looked for, and each answer."""
    failures = sorted(failures, key=lambda failure: failure.source.label)
    gone = [failure for failure in failures if failure.is_gone]
    lines = [f"{len(failures)} of {total} sources could not be fetched:"]
    for failure in failures:
        verdict = ": no place has it any more" if failure.is_gone else ""
        lines.append(f"  {redact(failure.source.label)}{verdict}")
        lines += [f"    {answer}" for answer in failure.answers]
        if not failure.answers:
            lines.append("    no mirror is known for it; ROCBAKE_MIRRORS would name one")
    hints = [answer.hint for failure in failures for answer in failure.answers if answer.hint]
    if gone:
        return FetchError("\n".join(lines), hint="invoke lock")
    return FetchError("\n".join(lines), hint=hints[0] if hints else "invoke fetch")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
