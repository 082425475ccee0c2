"""What each verb does: the calls in their order, and how the result is shown."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rocbake import bazel, golden, log, mirror, option, plan, project, run, show, target, wish
from rocbake import lock as locks
from rocbake.cache import Cache
from rocbake.errors import (
    BuildError,
    FetchError,
    LockError,
    RocbakeError,
    TargetError,
    UsageError,
)
from rocbake.store import Store
from rocbake.workshop import Workshop, parse_jobs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rocbake.asked import Asked
    from rocbake.fit import Verdict
    from rocbake.option import Choice
    from rocbake.plan import Plan
    from rocbake.project import Project
    from rocbake.remote import Remote
    from rocbake.source import Source
    from rocbake.store import Entry
    from rocbake.target import TargetSet

# Of a digest, in the name of a folder.
_DIGITS = 12

# The imports inside functions keep a build that is reused under a second: each costs a tenth.


def _store(loaded: Project) -> Store:
    return Store(loaded.root / "artifacts")


def _plans(
    loaded: Project, targets: Sequence[str], recipes: Sequence[str], settings: Sequence[str]
) -> list[Plan]:
    """Read every option, then resolve each recipe for each target set."""
    chosen = loaded.choose(list(recipes))
    sets = target.parse_many(targets)
    asked = option.parse(settings)
    option.check(
        asked,
        recipes={name: one.options for name, one in loaded.recipes.items()},
        chosen=[one.name for one in chosen],
    )
    made = []
    for recipe in chosen:
        for what_for in sets:
            one = recipe.built_for(what_for, asked)
            fresh, recipe_lock = locks.require_fresh(one.containers, one)
            made.append(plan.make(one, what_for, locks=fresh, recipe_lock=recipe_lock, asked=asked))
    return made


def _whole_plans(
    loaded: Project, targets: Sequence[str], recipes: Sequence[str], settings: Sequence[str]
) -> list[Plan]:
    """Resolve what can be built: its locks name every file."""
    made = _plans(loaded, targets, recipes, settings)
    plan.require_recorded(made)
    return made


def _choices(loaded: Project, one: Plan) -> dict[str, Choice]:
    """Return why the options of a plan are as they are."""
    targets = target.parse_target_set([",".join(one.targets)])
    return option.resolve(loaded.recipes[one.name].options, targets, one.overridden)


def _require_target(verb: str, targets: Sequence[str]) -> None:
    if not targets:
        raise TargetError(
            "no GPU target was named, and a build has no GPU to look at",
            hint=f"invoke {verb} --target gfx1201",
        )


def build(
    targets: Sequence[str],
    recipes: Sequence[str],
    *,
    dry_run: bool,
    as_json: bool,
    offline: bool,
    force: bool,
    settings: Sequence[str] = (),
    jobs: str | None = None,
    remote_cache: str = "",
    remote_executor: str = "",
    no_pull: bool = False,
) -> None:
    """Build, or show what would be built."""
    _require_target("build", targets)
    target.parse_many(targets)
    option.parse(settings)
    at_once = parse_jobs(jobs)
    remote = bazel.parse_remote(remote_cache, remote_executor)
    loaded = project.load()
    made = _plans(loaded, targets, recipes, settings)
    store = _store(loaded)
    if dry_run:
        choices = [_choices(loaded, one) for one in made]
        show.plans(made, choices, kept=store, cache=Cache(), as_json=as_json)
        return
    plan.require_recorded(made)
    from rocbake import build as building

    workshop = Workshop(
        project=loaded,
        cache=Cache(),
        store=store,
        offline=offline,
        jobs=at_once,
        remote=remote,
    )
    outcomes = building.build(
        made, workshop=workshop, force=force, origin=None if no_pull or offline else _origin()
    )
    show.outcomes(outcomes, as_json=as_json)
    building.require_reproduced(outcomes)


def lock(
    names: Sequence[str],
    targets: Sequence[str] = (),
    *,
    check: bool,
    record: bool,
    as_json: bool,
) -> None:
    """Make locks, check them, or write digests of finished builds into them."""
    if check and record:
        raise UsageError("--check and --record exclude each other")
    sets = target.parse_many(targets)
    loaded = project.load()
    if record:
        show.changes(golden.record(loaded, _current(loaded, names)), as_json=as_json)
        return
    from rocbake.resolve import Resolver

    with Resolver(loaded, cache=Cache(), mirrors=mirror.load(), targets=sets) as resolver:
        changes = resolver.lock(names, write=not check)
    told = {change.name: change.lines for change in changes}
    if sets and not check and not resolver.unreached:
        _freeze(loaded, names, sets[0], told)
    show.changes(told, as_json=as_json)
    _require_reached(resolver.unreached, sets)
    behind = [change.name for change in changes if change.lines]
    if check and behind:
        raise LockError(
            f"the wish or the archive has moved on: {', '.join(behind)}",
            hint="invoke lock " + " ".join(f"--name {name}" for name in behind),
        )


def _freeze(
    loaded: Project, names: Sequence[str], targets: TargetSet, told: dict[str, list[str]]
) -> None:
    """Record what Bazel downloads, which shows only when it is run."""
    from rocbake.freeze import freeze

    workshop = Workshop(project=loaded, cache=Cache(), store=_store(loaded))
    chosen = [one for one in loaded.recipes.values() if not names or one.name in names]
    for name, line in freeze(chosen, targets, workshop=workshop).items():
        told[name].append(line)


def _require_reached(
    unreached: Mapping[str, Sequence[RocbakeError]], sets: Sequence[TargetSet]
) -> None:
    """Say which sources the locks do not name, because they could not be had."""
    if not unreached:
        return
    lines = [f"  {name}: {error}" for name, errors in unreached.items() for error in errors]
    raise FetchError(
        "locked without these sources, which could not be had:\n" + "\n".join(lines),
        hint="invoke lock"
        + "".join(f" --name {name}" for name in unreached)
        + "".join(f" --target {one}" for one in sets)
        + "  where they can be reached",
    )


def _current(loaded: Project, names: Sequence[str]) -> list[Entry]:
    """Return the artifacts that today's locks name, of these recipes and containers or of all."""
    entries = _store(loaded).entries()
    keys = golden.current_keys(loaded, entries)
    if keys is None:
        raise LockError("a lock is missing or stale", hint="invoke doctor  says which")
    return [
        entry
        for entry in entries
        if entry.artifact.key in keys and (not names or entry.artifact.name in names)
    ]


def fetch(
    recipes: Sequence[str],
    targets: Sequence[str] = (),
    *,
    offline: bool,
    as_json: bool,
    settings: Sequence[str] = (),
) -> None:
    """Bring every locked source of the recipes into the cache.

    With target sets, that is what their builds need, and nothing is left for a network to do.
    """
    from rocbake import fetch as fetching

    loaded = project.load()
    cache = Cache()
    sources: list[Source] = []
    snapshots: list[str] = []
    chosen = loaded.choose(list(recipes))
    bazels = [one.name for one in chosen if one.file.bazel]
    if bazels and not targets:
        raise TargetError(
            f"{', '.join(bazels)}: what it is built of differs from target to target",
            hint=f"invoke fetch --recipe {bazels[0]} --target gfx1201",
        )
    made = _whole_plans(loaded, targets, recipes, settings) if targets else []
    for one in made:
        sources += one.inputs
        snapshots.append(one.snapshot)
    for recipe in chosen if not made else ():
        fresh, recipe_lock = locks.require_fresh(recipe.containers, recipe)
        sources += [deb for one in fresh.values() for deb in one.packages]
        for container in recipe.containers:
            usual = [one for one in container.file.sources if one.targets is None]
            files_of = wish.answers(usual, fresh[container.name].sources)
            sources += [one for one in files_of if one is not None]
        sources += recipe_lock.sources
        snapshots += [lock.snapshot for lock in fresh.values()]
    with log.step("Fetching sources"):
        files = fetching.fetch(
            sources,
            cache=cache,
            mirrors=mirror.load(),
            snapshot=max(snapshots, default=None),
            offline=offline,
        )
    if any(one.deps for one in made):
        from rocbake.freeze import bring

        workshop = Workshop(project=loaded, cache=cache, store=_store(loaded), offline=offline)
        for one in made:
            files |= bring(one, workshop=workshop)
            sources += [one.deps] if one.deps else []
    show.fetched(
        len(files),
        sum({one.sha256: one.size for one in sources}.values()),
        cache.root,
        as_json=as_json,
    )


def list_(*, targets: bool, as_json: bool) -> None:
    """Print recipes, containers and artifacts, or every GPU target."""
    if targets:
        show.targets(as_json=as_json)
        return
    loaded = project.load()
    show.inventory(loaded, _store(loaded).entries(), as_json=as_json)


def _entry(
    loaded: Project, verb: str, targets: Sequence[str], recipe: str, settings: Sequence[str]
) -> tuple[Plan, Entry]:
    """Return the one artifact that today's locks give for a recipe and a target set."""
    names = [recipe] if recipe else list(loaded.recipes)
    if len(names) != 1:
        raise UsageError(f"name one recipe of {', '.join(names)}", hint="add --recipe NAME")
    made = _plans(loaded, targets, names, settings)
    if len(made) != 1:
        raise UsageError("name one target set", hint=f"invoke {verb} --target gfx1201")
    (one,) = made
    found = _store(loaded).find(one.name, one.tag, one.key)
    if found is None:
        raise UsageError(
            f"the store has no {one.reference} of these locks",
            hint=f"invoke build {one.words}",
        )
    return one, found


def show_(
    targets: Sequence[str],
    recipe: str,
    *,
    as_json: bool,
    build_log: bool,
    settings: Sequence[str] = (),
) -> None:
    """Print what is known of one artifact, or the log of its build."""
    _require_target("show", targets)
    loaded = project.load()
    one, entry = _entry(loaded, "show", targets, recipe, settings)
    if build_log:
        show.build_log(entry)
    else:
        show.artifact(entry, _choices(loaded, one), _fit(entry), as_json=as_json)


def _fit(entry: Entry) -> Verdict | None:
    """Compare an archive with this machine; there is nothing to compare of a container."""
    from rocbake import fit, host, store
    from rocbake.manifest import Manifest

    if entry.artifact.archive is None:
        return None
    manifest = Manifest.model_validate(store.read_manifest(entry.folder))
    return fit.check(manifest, host.read(environment=os.environ))


def export(
    targets: Sequence[str],
    recipe: str,
    folder: str,
    *,
    image: bool,
    bundled: bool,
    github_env: bool = False,
    settings: Sequence[str] = (),
) -> None:
    """Copy an artifact's files to a folder, and say how its archive is used."""
    from rocbake import export as exporting

    _require_target("export", targets)
    if not folder:
        raise UsageError("no folder was named", hint="invoke export --target gfx1201 --into DIR")
    if image and bundled:
        raise UsageError("--image and --bundled exclude each other", hint="invoke export --help")
    loaded = project.load()
    one, entry = _entry(loaded, "export", targets, recipe, settings)
    place = Path(folder)
    if one.archive and entry.artifact.archive:
        # Its name says nothing of what is in it, and consumers compare no more than its path.
        place /= f"{one.stem}-{entry.artifact.archive.tar_sha256[:_DIGITS]}"
    paths = exporting.export(entry, place, image=image, bundled=bundled)
    for path in paths:
        show.line(str(path))
    environment = loaded.recipes[one.name].file.environment
    if image or not environment:
        return
    if github_env:
        exporting.to_github(environment, paths[0], job=os.environ)
    for text in exporting.in_shell(environment, paths[0]):
        show.line(text)


def _origin() -> Remote | None:
    """Return the remote store that ROCBAKE_REMOTE names, if it does."""
    if not os.environ.get("ROCBAKE_REMOTE"):
        return None
    from rocbake import remote

    return remote.parse("", os.environ, option="--from")


def push(
    targets: Sequence[str],
    recipe: str,
    address: str,
    *,
    as_json: bool,
    settings: Sequence[str] = (),
) -> None:
    """Write an artifact into a remote store."""
    from rocbake import remote, transfer

    _require_target("push", targets)
    to = remote.parse(address, os.environ, option="--to")
    _, entry = _entry(project.load(), "push", targets, recipe, settings)
    pushed = transfer.push(entry, to)
    show.pushed(entry.artifact, pushed.files, pushed.written, as_json=as_json)


def pull(
    targets: Sequence[str],
    recipes: Sequence[str],
    address: str,
    *,
    no_fit_check: bool,
    as_json: bool,
    settings: Sequence[str] = (),
) -> None:
    """Bring artifacts from a remote store, if the locks vouch for them and they fit."""
    from rocbake import build as building
    from rocbake import remote, transfer

    _require_target("pull", targets)
    origin = remote.parse(address, os.environ, option="--from")
    loaded = project.load()
    entries = [
        transfer.pull(
            one,
            origin,
            project=loaded,
            store=_store(loaded),
            cache=Cache(),
            skip_fit=no_fit_check,
        )
        for one in _whole_plans(loaded, targets, recipes, settings)
    ]
    show.outcomes([building.pulled(loaded, entry) for entry in entries], as_json=as_json)


def verify(
    targets: Sequence[str],
    recipes: Sequence[str],
    *,
    as_json: bool,
    offline: bool,
    settings: Sequence[str] = (),
    jobs: str | None = None,
) -> None:
    """Build again from nothing, and compare."""
    from rocbake import verify as verifying

    _require_target("verify", targets)
    at_once = parse_jobs(jobs)
    loaded = project.load()
    workshop = Workshop(
        project=loaded,
        cache=Cache(),
        store=_store(loaded),
        offline=offline,
        fresh=True,
        jobs=at_once,
    )
    comparisons = []
    for one in _whole_plans(loaded, targets, recipes, settings):
        comparisons += verifying.verify(one, workshop=workshop)
    show.comparisons(comparisons, as_json=as_json)
    verifying.require_equal(comparisons)


def clean(*, everything: bool, yes: bool, as_json: bool) -> None:
    """Show what of ours could go; take it away if told to."""
    from rocbake import clean as cleaning

    loaded = project.load()
    found = cleaning.find(loaded, _store(loaded), Cache(), everything=everything)
    show.leftovers(found, removed=yes, as_json=as_json)
    for one in found if yes else ():
        one.remove()
    if found and not yes:
        log.say("nothing was removed; add --yes to remove it")


def smoke(asked: Asked, *, dry_run: bool, print_run: bool, junit: str, as_json: bool) -> None:
    """Try what was built, and say where it computed; or show how it would be run."""
    from rocbake import report as reporting
    from rocbake.trial import Trial

    if junit and not Path(junit).parent.is_dir():
        raise UsageError(f"--junit: there is no folder {Path(junit).parent} to write it to")
    trial = Trial(asked, os.environ)
    if dry_run or print_run:
        if asked.host or asked.emulator or dry_run == print_run:
            raise UsageError(
                "--dry-run and --print-run show how a GPU is passed, one of them at a time",
                hint="invoke smoke --help",
            )
        plans = trial.plans(project.load)
        show.run_plans(plans, as_lines=print_run, as_json=as_json)
        return
    reports = trial.reports(project.load)
    if junit:
        text = reporting.junit(reports, require_gpu=asked.require_gpu)
        Path(junit).write_text(text, encoding="utf-8")
    show.reports(reports, as_json=as_json)
    if wrong := reporting.failure(reports, require_gpu=asked.require_gpu):
        raise wrong


def doctor(*, as_json: bool) -> None:
    """Look for everything that would go wrong."""
    from rocbake import doctor as examining
    from rocbake.finding import Examination

    found = Examination.of(examining.examine(Store(project.ROOT / "artifacts"), Cache()))
    show.findings(found, as_json=as_json)
    wrong = [one for one in found.findings if one.exit_code]
    if wrong:
        things = "1 thing" if len(wrong) == 1 else f"{len(wrong)} things"
        failure = RocbakeError(f"{things} to mend, see above", hint=wrong[0].remedy)
        failure.exit_code = wrong[0].exit_code
        raise failure


def test(*, unit: bool) -> None:
    """Run this project's tests: the fast ones, or these and those that need the engine."""
    words = [sys.executable, "-m", "pytest", "-q"]
    _hand_over([*words, "tests/unit", "--numprocesses", "auto"])
    if not unit:
        _hand_over([*words, "tests/integration"])


def check() -> None:
    """Run every static check on this project."""
    tools = Path(sys.executable).parent
    scripts = [str(path) for path in project.ROOT.rglob("*.sh") if ".venv" not in path.parts]
    for name, *arguments in (
        ["ruff", "check"],
        ["ruff", "format", "--check"],
        ["mypy"],
        ["lint-imports"],
        ["shellcheck", "bootstrap", ".ci/run", *scripts],
        ["codespell"],
    ):
        with log.step(" ".join([name, *arguments[:1]])):
            _hand_over([tools / name, *arguments])


def _hand_over(words: Sequence[str | Path]) -> None:
    """Run a program of this project's own whose output is for the person who asked."""
    result = run.run(words, cwd=project.ROOT, on_line=show.line, check=False)
    if result.returncode != 0:
        raise BuildError(f"{Path(words[0]).name} ended with exit code {result.returncode}")
