"""The workshop: where a build's things are, and which of them it may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocbake.cache import Cache
    from rocbake.project import Project
    from rocbake.store import Store


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
    """

    project: Project
    cache: Cache
    store: Store
    offline: bool = False
    fresh: bool = False
    jobs: int | None = None
