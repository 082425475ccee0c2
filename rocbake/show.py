"""How results look to a person: tables and plans on stdout."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rocbake import bazel, passthrough, store, target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rocbake.bazel import BazelWish
    from rocbake.build import Outcome
    from rocbake.cache import Cache
    from rocbake.clean import Leftover
    from rocbake.finding import Examination
    from rocbake.fit import Verdict
    from rocbake.option import Choice
    from rocbake.passthrough import RunPlan
    from rocbake.plan import Plan
    from rocbake.project import Project
    from rocbake.report import Report
    from rocbake.store import Artifact, Entry, Store
    from rocbake.verify import Comparison

_WIDE = 200
_WIDTH_OF_OUTCOMES = 140
_SHORT_DIGEST = 12


class _Results(Console):
    def on_broken_pipe(self) -> None:
        """Let the boundary say what it means that the reader has left; Rich would exit with 1."""
        raise  # noqa: PLE0704 - Rich calls this while it handles the error


def _console() -> Console:
    """Return a console that wraps for a person and never for a program."""
    return _Results(width=None if sys.stdout.isatty() else _WIDE, soft_wrap=True, highlight=False)


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


def line(text: str) -> None:
    """Print one line of result as it is."""
    print(text, flush=True)  # noqa: T201 - results go to stdout


def _print_json(value: object) -> None:
    line(json.dumps(value, indent=2))


def plans(
    made: Sequence[Plan],
    choices: Sequence[Mapping[str, Choice]],
    *,
    kept: Store,
    cache: Cache,
    as_json: bool,
) -> None:
    """Print what a build would do, step by step.

    Args:
        made: What is to be built.
        choices: For each of them, why its options are as they are.
        kept: What need not be built.
        cache: What need not be fetched.
        as_json: Print the plans themselves.
    """
    if as_json:
        _print_json([_plan(one) for one in made])
        return
    console = _console()
    for one, reasons in zip(made, choices, strict=True):
        there = kept.find(one.name, one.tag, one.key)
        console.print(f"[bold]{one.name} {one.version}[/] for {','.join(one.targets)}")
        console.print(f"  key      {one.key}")
        console.print(f"  epoch    {one.epoch}   snapshot {one.snapshot}   ROCm {one.rocm}")
        for number, (name, choice) in enumerate(reasons.items()):
            title = "" if number else "options"
            console.print(f"  {title:8} {name}={choice.value}: {choice.why}")
        missing = [source for source in one.inputs if not cache.has(source.sha256, source.size)]
        total = size(sum(source.size for source in missing))
        console.print(
            f"  fetch    {len(missing)} of {len(one.inputs)} files, {total}"
            if missing
            else f"  fetch    nothing: all {len(one.inputs)} files are in the cache"
        )
        for layer in one.layers:
            state = "reused" if kept.find(layer.name, layer.tag, layer.key) else "built"
            console.print(
                f"  {state:8} {layer.reference}   {len(layer.packages)} packages"
                + (f" on {layer.parent}" if layer.parent else "")
            )
        console.print(f"  {'reused' if there else 'built':8} {one.reference}   on {one.runtime}")
        console.print(f"  {'reused' if there else 'packed':8} {one.archive_name}")
        if one.bazel:
            _bazel(console, one.bazel, one.targets)
        for number, label in enumerate(
            label for labels in one.missing.values() for label in labels
        ):
            console.print(Text(f"  {'' if number else 'missing':8} {label}"))


def _plan(one: Plan) -> dict[str, object]:
    """Return a plan as JSON, with the command lines that its recipe's words give."""
    told: dict[str, object] = one.model_dump(mode="json", by_alias=True)
    if one.bazel:
        told["bazel_build"] = [asdict(word) for word in bazel.command_line(one.bazel, one.targets)]
    return told


def _bazel(console: Console, wish: BazelWish, targets: Sequence[str]) -> None:
    """Print what Bazel is told: upstream's words in one line, each other one with its reason."""
    line = bazel.command_line(wish, targets)
    upstream = [word.text for word in line if word.origin == "upstream"]
    console.print(Text(f"  {'bazel':8} build {' '.join(upstream)}"))
    for word in line:
        if word.origin != "upstream":
            console.print(
                Text(f"           + {word.text}" + (f"   {word.why}" if word.why else ""))
            )


def outcomes(made: Sequence[Outcome], *, as_json: bool) -> None:
    """Print the closing table of a build."""
    if as_json:
        _print_json(
            [
                one.entry.artifact.model_dump(mode="json", by_alias=True)
                | {
                    "folder": str(one.entry.folder),
                    "state": one.state,
                    "recorded": one.recorded,
                    "difference": one.difference,
                }
                for one in made
            ]
        )
        return
    table = _table("artifact", "", "size", "sha256", "lock", "seconds", right=("size", "seconds"))
    console = _console()
    # Whole where it fits or a program reads; a digest broken over lines helps nobody.
    shown = None if console.width >= _WIDTH_OF_OUTCOMES else _SHORT_DIGEST
    for one in made:
        artifact, archive = one.entry.artifact, one.entry.artifact.archive
        rows = [(artifact.image.reference, artifact.image.size, artifact.image.config[7:])]
        if archive:
            rows.append(("  its archive, see below", archive.size, archive.sha256))
        for name, bytes_, sha256 in rows:
            table.add_row(
                name, one.state, size(bytes_), sha256[:shown], one.recorded, f"{one.seconds:.1f}"
            )
    console.print(table)
    for one in made:
        if one.entry.archive_path:
            line(str(one.entry.archive_path))


def pushed(artifact: Artifact, files: int, written: int, *, as_json: bool) -> None:
    """Print what a push wrote."""
    if as_json:
        _print_json({"key": artifact.key, "files": files, "written": written})
    else:
        line(f"{artifact.image.reference}: {files} files, {size(written)} written")


def changes(made: Mapping[str, Sequence[str]], *, as_json: bool) -> None:
    """Print what became of locks, by the name of what is locked."""
    if as_json:
        _print_json(dict(made))
        return
    for name, lines in made.items():
        line(f"{name}: unchanged" if not lines else f"{name}:")
        for one in lines:
            line(f"  {one}")


def fetched(count: int, total: int, root: Path, *, as_json: bool) -> None:
    """Print what the cache holds for the recipes asked for."""
    if as_json:
        _print_json({"files": count, "bytes": total, "cache": str(root)})
    else:
        line(f"{count} files, {size(total)}, all verified, in {root}")


def targets(*, as_json: bool) -> None:
    """Print the table of GPU targets."""
    rows = target.table()
    if as_json:
        _print_json([dict(zip(target.TABLE_HEADER, row, strict=True)) for row in rows])
        return
    table = _table(*target.TABLE_HEADER)
    for row in rows:
        table.add_row(*row)
    _console().print(table)


def inventory(loaded: Project, entries: Sequence[Entry], *, as_json: bool) -> None:
    """Print recipes, containers and artifacts."""
    if as_json:
        _print_json(
            {
                "recipes": {
                    one.name: one.file.model_dump(mode="json") for one in loaded.recipes.values()
                },
                "containers": {
                    one.name: one.file.model_dump(mode="json") for one in loaded.containers.values()
                },
                "artifacts": [
                    entry.artifact.model_dump(mode="json", by_alias=True)
                    | {"folder": str(entry.folder)}
                    for entry in entries
                ],
            }
        )
        return
    console = _console()
    table = _table("recipe", "version", "built in", "runs on", "")
    for recipe in loaded.recipes.values():
        file = recipe.file
        table.add_row(recipe.name, file.version, file.sdk, file.runtime, file.summary)
    console.print(table)
    table = _table("container", "on", "ROCm", "")
    for one in loaded.containers.values():
        table.add_row(one.name, one.file.parent or "", one.rocm or "", one.file.summary)
    console.print()
    console.print(table)
    if not entries:
        return
    table = _table(
        "artifact", "targets", "image", "archive", "built (UTC)", right=("image", "archive")
    )
    for entry in entries:
        artifact = entry.artifact
        table.add_row(
            artifact.image.reference,
            ",".join(artifact.targets),
            size(artifact.image.size),
            size(artifact.archive.size) if artifact.archive else "",
            artifact.built_at.replace("T", " ").rstrip("Z"),
        )
    console.print()
    console.print(table)


def artifact(
    entry: Entry, choices: Mapping[str, Choice], fit: Verdict | None, *, as_json: bool
) -> None:
    """Print what is known of one artifact, why its options are as they are, and if it fits here."""
    record = entry.artifact
    manifest = store.read_manifest(entry.folder)
    if as_json:
        _print_json(
            {
                "artifact": record.model_dump(mode="json", by_alias=True),
                "manifest": manifest,
                "fit": asdict(fit) | {"fits": fit.fits} if fit else None,
            }
        )
        return
    archive = record.archive
    rows = {
        "recipe": f"{record.name} {record.version}",
        "targets": ", ".join(record.targets),
        **{f"option {name}": f"{choice.value}: {choice.why}" for name, choice in choices.items()},
        "key": record.key,
        "built": f"{record.built_at}, {record.seconds} s, "
        + ", ".join(f"{name} {version}" for name, version in record.engine.items()),
        "image": f"{record.image.reference}, {size(record.image.size)}",
        "  configuration": record.image.config,
        **{f"  layer {number}": name for number, name in enumerate(record.image.layers)},
    }
    if archive:
        rows |= {
            "archive": f"{archive.file_name}, {size(archive.size)}",
            "  sha256": archive.sha256,
            "  sha256 of the tar": archive.tar_sha256,
            "  needs": ", ".join(manifest["needed"]),
            "  versions": ", ".join(f"{k} {v}" for k, v in manifest["versions"].items()),
        }
        for file in manifest["files"]:
            code = file["code_objects"]
            told = "".join(f", {name} code: {count}" for name, count in code.items())
            rows[f"  {file['path']}"] = f"{size(file['size'])}{told}"
    # No table: a digest that a table breaks over lines cannot be copied.
    width = max(map(len, rows))
    for key, value in rows.items():
        line(f"{key:{width}}  {value}")
    if fit:
        line(f"{'on this machine':{width}}  {'it fits' if fit.fits else 'it does not fit'}")
        for misfit in fit.misfits:
            line(f"  {misfit}")
            line(f"    → {misfit.remedy}")
        for note in fit.notes:
            line(f"  {note}")
    line(str(entry.folder))


def build_log(entry: Entry) -> None:
    """Print the log of an artifact's build."""
    line(store.read_log(entry.folder))


def comparisons(made: Sequence[Comparison], *, as_json: bool) -> None:
    """Print what verifying found."""
    if as_json:
        _print_json([asdict(one) for one in made])
        return
    table = _table("artifact", "compared", "")
    for one in made:
        table.add_row(one.name, one.parts, one.difference or "reproduced")
    _console().print(table)
    for one in made:
        if one.detail:
            line(one.detail)


def leftovers(found: Sequence[Leftover], *, removed: bool, as_json: bool) -> None:
    """Print what could go, or goes."""
    if as_json:
        _print_json([{"what": one.what, "why": one.why, "bytes": one.size} for one in found])
        return
    if not found:
        line("nothing to remove")
        return
    table = _table("removed" if removed else "could go", "size", "why", right=("size",))
    for one in found:
        table.add_row(one.what, size(one.size) if one.size else "", one.why)
    _console().print(table)


_MARKS = {"passed": "✓", "failed": "✗", "skipped": "-"}


def reports(made: Sequence[Report], *, as_json: bool) -> None:
    """Print what smoke tests found: a table each; one that ended before any probe has none."""
    if as_json:
        _print_json([one.model_dump(mode="json", by_alias=True) for one in made])
        return
    for one in made:
        if not one.probes:
            continue
        table = _table("", "probe", "", "seconds", right=("seconds",))
        for probe in one.probes:
            table.add_row(_MARKS[probe.verdict], probe.name, probe.says, f"{probe.seconds:.1f}")
        if one.subject:
            line(f"{one.subject.image}, code for {', '.join(one.subject.targets)}")
        if one.card:
            line(f"{one.card['product']} ({one.card['target']}) at {one.card['render']['path']}")
        _console().print(table)
        for probe in one.probes:
            for printed in probe.output.splitlines():
                line(f"  {probe.name} | {printed}")
        for message in one.kernel_log:
            line(f"  kernel | {message}")
        line(f"{one.verdict}: {one.says}")


def run_plans(plans: Sequence[RunPlan], *, as_lines: bool, as_json: bool) -> None:
    """Print how images would be run; with `as_lines`, as commands to paste."""
    if as_json:
        _print_json([passthrough.to_json(one) for one in plans])
        return
    for one in plans:
        if as_lines:
            line(passthrough.command_line(one, "docker", ()))
            line(passthrough.command_line(one, "podman", ()))
            continue
        rows = passthrough.describe(one)
        width = max(len(name) for name, _ in rows)
        for name, text in rows:
            line(f"{name:{width}}  {text}")


_STATES = {"ok": "✓", "warn": "!", "fail": "✗"}


def findings(found: Examination, *, as_json: bool) -> None:
    """Print what the doctor found."""
    if as_json:
        _print_json(found.model_dump(mode="json", by_alias=True))
        return
    table = _table("", "", "")
    table.show_header = False
    for one in found.findings:
        # As text: what stands in brackets is no markup.
        table.add_row(_STATES[one.state], one.subject, Text(one.says))
        if one.remedy:
            table.add_row("", "", Text(f"→ {one.remedy}"))
    _console().print(table)
