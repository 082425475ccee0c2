"""How results look to a person: tables and plans on stdout."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocbake.build import Outcome
    from rocbake.cache import Cache
    from rocbake.plan import Plan
    from rocbake.resolve import Change
    from rocbake.store import Store

_WIDE = 200


def _console() -> Console:
    """Return a console that wraps for a person and never for a program."""
    return Console(width=None if sys.stdout.isatty() else _WIDE, soft_wrap=True, highlight=False)


def _table(*columns: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def size(count: int) -> str:
    """Return a number of bytes for people, in powers of ten."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:  # noqa: PLR2004 - the step between the units
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def plans(made: Sequence[Plan], *, store: Store, cache: Cache) -> None:
    """Print what a build would do, step by step."""
    console = _console()
    for one in made:
        kept = store.find(one.name, one.tag, one.key)
        console.print(f"[bold]{one.name} {one.version}[/] for {','.join(one.targets)}")
        console.print(f"  key      {one.key}")
        console.print(f"  epoch    {one.epoch}   snapshot {one.snapshot}   ROCm {one.rocm}")
        missing = [source for source in one.inputs if not cache.has(source.sha256, source.size)]
        total = size(sum(source.size for source in missing))
        console.print(
            f"  fetch    {len(missing)} of {len(one.inputs)} files, {total}"
            if missing
            else f"  fetch    nothing: all {len(one.inputs)} files are in the cache"
        )
        for layer in one.layers:
            state = "reused" if store.find(layer.name, layer.tag, layer.key) else "built"
            console.print(
                f"  {state:8} {layer.reference}   {len(layer.packages)} packages"
                + (f" on {layer.parent}" if layer.parent else "")
            )
        console.print(f"  {'reused' if kept else 'built':8} {one.reference}   on {one.runtime}")
        console.print(f"  {'reused' if kept else 'packed':8} {one.stem}.tar.zst")


def outcomes(made: Sequence[Outcome]) -> None:
    """Print the closing table of a build."""
    table = _table("artifact", "", "size", "sha256", "against the lock", "seconds", right=("size", "seconds"))
    for one in made:
        artifact = one.entry.artifact
        seconds = f"{one.seconds:.1f}"
        table.add_row(
            artifact.image.reference,
            one.state,
            size(artifact.image.size),
            artifact.image.config.removeprefix("sha256:"),
            "" if artifact.archive else one.recorded,
            "" if artifact.archive else seconds,
        )
        if artifact.archive:
            archive = artifact.archive
            table.add_row(
                archive.file_name, one.state, size(archive.size), archive.sha256, one.recorded, seconds
            )
    console = _console()
    console.print(table)
    for one in made:
        if one.entry.archive_path:
            console.print(f"{one.entry.archive_path}")


def outcomes_json(made: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return what the closing table says, for machines."""
    return [
        one.entry.artifact.model_dump(mode="json", by_alias=True)
        | {
            "folder": str(one.entry.folder),
            "state": one.state,
            "recorded": one.recorded,
            "difference": one.difference,
        }
        for one in made
    ]


def changes(made: Sequence[Change], *, as_json: bool) -> None:
    """Print what making locks changed."""
    if as_json:
        print(json.dumps({change.name: change.lines for change in made}, indent=2))  # noqa: T201 - results go to stdout
        return
    console = _console()
    for change in made:
        console.print(f"{change.name}: {'unchanged' if not change.lines else ''}")
        for line in change.lines:
            console.print(f"  {line}")
