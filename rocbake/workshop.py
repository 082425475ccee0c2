"""The workshop: where a build's things are, and which of them it may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocbake.asked import number

if TYPE_CHECKING:
    from rocbake.bazel import Remote
    from rocbake.cache import Cache
    from rocbake.project import Project
    from rocbake.store import Store

_MOST_JOBS = 1024


@dataclass(frozen=True)
class Workshop:
    """What every step of a build is given.

    Attributes:
        project: The containers and recipes.
        cache: Where sources are.
        store: Where artifacts go.
        offline: Use the cache alone.
        fresh: From nothing: no cached layer, no kept root file system, no compiled object.
        jobs: How many compilers may run at once; what there is room for if None.
        remote: Bazel's remote cache and executor, for recipes that Bazel builds.
    """

    project: Project
    cache: Cache
    store: Store
    offline: bool = False
    fresh: bool = False
    jobs: int | None = None
    remote: Remote | None = None


def parse_jobs(text: str | None) -> int | None:
    """Return how many compilers may run at once, as --jobs has it; None if it was not given.

    Raises:
        UsageError: It is no whole number from 1 to 1024.
    """
    return None if text is None else number("--jobs", text, 1, _MOST_JOBS)
