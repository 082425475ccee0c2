"""What the documents say, held against the code: options, links, codes, fields, tables."""

import re
import tomllib

import pytest
import yaml

import tasks
from rocbake import (
    bazel,
    container,
    errors,
    kernel,
    lock,
    manifest,
    option,
    plan,
    project,
    recipe,
    remote,
    report,
    smoke_wish,
    source,
    store,
    target,
    wish,
)

ROOT = project.ROOT
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        ROOT / "artifacts" / "README.md",
        *ROOT.glob("docs/**/*.md"),
    ]
)
FORMATS = ROOT / "docs" / "formats.md"
COMMANDS = (
    "./bootstrap && .venv/bin/invoke build --target gfx1201",
    "./bootstrap && .venv/bin/invoke test",
)
ENDED_FROM_OUTSIDE = {130, 141, 143}

# Each table of fields in docs/formats.md, by its heading, and the model it is about.
MODELS = {
    "container.yaml": container.ContainerFile,
    "file of a container": wish.LayerWish,
    "archive": container.Archive,
    "suite": container.Suite,
    "recipe.yaml": recipe.RecipeFile,
    "rocm": recipe.RocmWish,
    "bazel": bazel.BazelWish,
    "name of an archive": recipe.ArchiveWish,
    "source: url": wish.UrlWish,
    "source: git": wish.GitWish,
    "source: pypi": wish.PypiWish,
    "option": option.Option,
    "rule": option.Rule,
    "smoke": smoke_wish.Smoke,
    "smoke command": smoke_wish.SmokeCommand,
    "kernel": kernel.KernelTest,
    "argument": kernel.Argument,
    "expect": kernel.Expect,
    "lock.json of a container": lock.ContainerLock,
    "suite in a lock": lock.SuiteLock,
    "deb": source.Deb,
    "recorded": lock.Recorded,
    "lock.json of a recipe": lock.RecipeLock,
    "locked url": source.Url,
    "locked git": source.Git,
    "locked pypi": source.Pypi,
    "locked deps": source.Deps,
    "Plan": plan.Plan,
    "layer": plan.Layer,
    "manifest.json": manifest.Manifest,
    "file": manifest.FileEntry,
    "elf": manifest.ElfEntry,
    "artifact.json": store.Artifact,
    "remote.json": remote.RemoteArtifact,
    "remote file": remote.RemoteFile,
    "image": store.ImageRecord,
    "packed archive": store.ArchiveRecord,
    "tests of an artifact": store.TestsRecord,
    "smoke/<time>.json": report.Report,
    "probe": report.Probe,
    "subject": report.Subject,
}


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def without_code(text):
    """Leave out what stands in fences and between backticks: a link in there is none."""
    return re.sub(
        r"`[^`\n]*`", "``", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    )


def anchors(text):
    """Every heading as a link names it."""
    headings = re.findall(
        r"^#+ (.+)$",
        re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE),
        re.MULTILINE,
    )
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def section(text, heading):
    """What stands under a heading, up to the next one of any depth."""
    found = re.search(
        rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text, re.DOTALL | re.MULTILINE
    )
    assert found, f"no heading {heading!r}"
    return found.group(1)


def rows(text):
    """The cells of each table row, headers and rules left out."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for index, row in enumerate(cells) if not _is_head(cells, index)]


def _is_head(cells, index):
    rules = [set(row[0]) <= set("-:") for row in cells]
    return rules[index] or (index + 1 < len(cells) and rules[index + 1])


def invocations(text):
    """Each `invoke VERB --option ...` of a text, as the verb and its options."""
    found = []
    for words in re.findall(r"(?<![\w/-])(?:\.venv/bin/)?invoke ((?:--?)?[a-z][^`\n|]*)", text):
        command = re.split(r"[#;(),]|&&|  ", words)[0].split()
        if command[0].startswith("-") or not re.fullmatch(r"[a-z]+[.,:]?", command[0]):
            continue
        options = [word.partition("=")[0] for word in command[1:] if word.startswith("--")]
        found.append((command[0].rstrip(".,:"), options))
    return found


def option_names(verb):
    return {
        f"--{name.replace('_', '-')}"
        for argument in tasks.namespace[verb].get_arguments()
        for name in argument.names
    }


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_verb_and_option_exists(page):
    text = page.read_text()
    # Prose says "invoke test and", so verbs count only where they stand as code.
    code = re.findall(r"`([^`\n]+)`", text) + re.findall(
        r"^```.*?^```$", text, re.DOTALL | re.MULTILINE
    )

    wrong = [
        f"{verb} {option}".strip()
        for verb, options in invocations("\n".join(code))
        for option in ["", *options]
        if verb not in tasks.namespace.task_names
        or (option and option not in {*option_names(verb), "--help"})
    ]

    assert wrong == []


def test_options_that_do_not_exist_would_be_found():
    assert invocations(".venv/bin/invoke build --tarket gfx1201 --dry-run  # text --no") == [
        ("build", ["--tarket", "--dry-run"])
    ]
    assert "--tarket" not in option_names("build")
    assert {"--target", "--dry-run"} <= option_names("build")


def test_every_verb_is_mentioned_in_the_readme():
    text = (ROOT / "README.md").read_text()

    assert {verb for verb in tasks.namespace.task_names if f"invoke {verb}" not in text} == set()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_resolves(page):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
            broken.append(link)

    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_that_is_named_exists(page):
    text = page.read_text()
    named = re.findall(
        r"`((?:\.ci|containers|docs|recipes|rocbake|tests)/[\w./-]*[\w/])`", text
    ) + re.findall(r"`([a-z_]+\.py|[a-z-]+\.sh)`", text)

    missing = [name for name in named if not _exists(name)]

    assert missing == []


def _exists(name):
    places = ["", "rocbake", "containers/shared", "recipes/hip-probe"]
    return any((ROOT / place / name).exists() for place in places)


def test_pages_of_the_folder_are_linked_from_the_readme():
    text = (ROOT / "README.md").read_text()

    assert [
        path.name for path in (ROOT / "docs").glob("*.md") if f"(docs/{path.name})" not in text
    ] == []


def kinds():
    """Every class of errors.py below the first; those of other modules have its code, too."""
    every = errors.RocbakeError.__subclasses__()
    return [kind for kind in every if kind.__module__ == errors.__name__]


def test_exit_codes_are_those_of_the_errors():
    classes = {}
    reserved = set()
    for code, _, name, *_ in rows((ROOT / "docs" / "exit-codes.md").read_text()):
        if name:
            classes[name.strip("`")] = int(code)
        else:
            reserved.add(int(code))

    own = {kind.__name__: kind.exit_code for kind in [errors.RocbakeError, *kinds()]}
    assert classes == own
    assert reserved == ({0} | ENDED_FROM_OUTSIDE) - set(own.values())


def test_the_readme_says_the_same_exit_codes():
    text = section((ROOT / "README.md").read_text(), "Exit codes")
    said = {int(code) for code in re.findall(r"\b(\d+) [a-z]", text)}

    assert said == {0, *(kind.exit_code for kind in kinds())}


def test_the_recipe_table_of_the_readme_is_the_folder():
    table = rows(section((ROOT / "README.md").read_text(), "Recipes"))

    said = {}
    for name, version, sdk, runtime, summary in table:
        said[name.strip("`")] = [version, sdk.strip("`"), runtime.strip("`"), summary]
    there = {}
    for path in ROOT.glob("recipes/*/recipe.yaml"):
        file = yaml.load(path.read_text(), Loader=yaml.BaseLoader)
        there[path.parent.name] = [file[key] for key in ("version", "sdk", "runtime", "summary")]
    assert said == there


def test_the_target_table_of_the_readme_names_targets_that_exist():
    table = rows(section((ROOT / "README.md").read_text(), "Targets"))

    assert len(table) >= 5
    for name, meaning in table:
        parsed = target.parse_target_set([name.strip("`")])
        for processor in (one.processor for one in parsed.targets):
            known = [processor.name, *processor.products.split(", ")]
            assert any(word in meaning for word in known), (name, processor.name)


def test_the_two_commands_are_in_the_readme_and_ci_runs_the_second():
    readme = (ROOT / "README.md").read_text()
    ci = (ROOT / ".ci" / "run").read_text()

    assert [command for command in COMMANDS if command not in readme] == []
    steps = COMMANDS[1].split(" && ")
    lines = [line.removeprefix("exec ") for line in ci.splitlines()]
    assert [line for line in lines if line in steps] == steps
    assert lines[-1] == steps[-1]


@pytest.mark.parametrize("heading", MODELS)
def test_fields_are_those_of_the_model(heading):
    said = set()
    needed = set()
    for row in rows(section(FORMATS.read_text(), heading)):
        names = re.findall(r"`(\w+)`", row[0])
        said.update(names)
        if row[0].startswith("**"):
            needed.update(names)

    fields = MODELS[heading].model_fields
    assert said == {field.alias or name for name, field in fields.items()}
    assert needed == {field.alias or name for name, field in fields.items() if field.is_required()}


def test_traits_are_those_of_the_table():
    table = rows(section(FORMATS.read_text(), "Traits"))

    assert {name.strip("`"): meaning for name, meaning in table} == target.TRAITS


def test_the_floors_are_those_of_the_contract():
    with (ROOT / "pyproject.toml").open("rb") as stream:
        contracts = tomllib.load(stream)["tool"]["importlinter"]["contracts"]
    (layers,) = (one["layers"] for one in contracts if one["name"] == "floors")
    page = section((ROOT / "docs" / "architecture.md").read_text(), "Floors")

    said = [set(re.findall(r"`(\w+)`", modules)) for _, modules, _ in rows(page)]

    assert said == [set(layer.split(" : ")) for layer in layers]


def test_decisions_are_short_and_numbered_without_a_gap():
    paths = sorted((ROOT / "docs" / "adr").glob("*.md"))

    assert [int(path.name[:4]) for path in paths] == list(range(1, len(paths) + 1))
    for path in paths:
        lines = path.read_text().splitlines()
        assert lines[0].startswith(f"# {int(path.name[:4])}. "), path.name
        assert len(lines) <= 40, path.name
        for part in ("Context", "Decision", "Consequences", "Refused"):
            assert f"## {part}" in lines, (path.name, part)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200
