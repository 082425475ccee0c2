import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocbake import target
from rocbake.errors import TargetError
from rocbake.target import check_rocm, parse_many, parse_target, parse_target_set

NAMES = [processor.name for processor in target.PROCESSORS]


def canonical(*values):
    return str(parse_target_set(values))


def refusal(*values):
    with pytest.raises(TargetError) as caught:
        parse_target_set(values)
    return str(caught.value)


def number(name):
    """Return what a name sorts by: LLVM's major, minor and stepping; a generic one comes first."""
    if name.endswith("-generic"):
        numbers = [int(part) for part in name.removeprefix("gfx").split("-")[:-1]]
        return (*numbers, -1)[:2] if len(numbers) == 1 else (*numbers, -1)
    digits = name.removeprefix("gfx")
    return int(digits[:-2]), int(digits[-2]), int(digits[-1], 16)


# The table


def test_table_is_in_the_order_of_the_numbers():
    assert sorted(NAMES, key=number) == NAMES


def test_table_names_each_processor_and_each_machine_number_once():
    machines = [processor.machine for processor in target.PROCESSORS]

    assert len(set(NAMES)) == len(NAMES)
    assert len(set(machines)) == len(machines)


def test_table_refers_only_to_generic_targets_that_it_has():
    generic = {name for name in NAMES if name.endswith("-generic")}

    assert {processor.generic for processor in target.PROCESSORS} - {None} == generic


@pytest.mark.parametrize("processor", target.PROCESSORS, ids=lambda processor: processor.name)
def test_features_of_a_generic_target_are_features_of_its_members(processor):
    members = [row for row in target.PROCESSORS if row.generic == processor.name]

    assert all(set(processor.features) <= set(member.features) for member in members)


def test_no_group_has_the_name_of_a_target():
    assert not set(target.GROUPS) & set(NAMES)


def test_members_of_families_are_those_of_therock():
    assert target.GROUPS["gfx120X-all"] == ("gfx1200", "gfx1201")
    assert target.GROUPS["gfx110X-dgpu"] == ("gfx1100", "gfx1101", "gfx1102")
    assert target.GROUPS["gfx110X-all"] == ("gfx1100", "gfx1101", "gfx1102", "gfx1103")
    assert target.GROUPS["gfx94X-dcgpu"] == ("gfx942",)


def test_machine_numbers_are_those_in_code_objects():
    assert target.name_of_machine(0x4E) == "gfx1201"
    assert target.name_of_machine(0x3F) == "gfx90a"
    assert target.name_of_machine(0x54) == "gfx11-generic"
    assert target.name_of_machine(0xFE) is None


def test_printed_table_has_a_cell_for_every_column():
    rows = target.table()

    assert {len(row) for row in rows} == {len(target.TABLE_HEADER)}
    assert [row[0] for row in rows] == NAMES
    (row,) = (row for row in rows if row[0] == "gfx1201")
    assert row == (
        "gfx1201",
        "Radeon RX 9070, RX 9070 XT, RX 9070 GRE",
        "discrete",
        ">= 6.3",
        "",
        "discrete vmm hipblaslt",
        "gfx12-generic",
        "gfx120X-all portable rdna4",
    )


# Traits


@pytest.mark.parametrize(
    ("name", "traits"),
    [
        ("gfx1201", "discrete vmm hipblaslt"),
        ("gfx1102", "discrete vmm hipblaslt"),
        ("gfx1103", "apu"),
        ("gfx1151", "apu hipblaslt"),
        ("gfx90a", "discrete hipblaslt"),
        ("gfx1030", "discrete"),
        ("gfx942", ""),
        ("gfx1250", ""),
        ("gfx12-generic", "discrete vmm hipblaslt"),
        ("gfx11-generic", ""),
        ("gfx10-1-generic", ""),
    ],
)
def test_traits_are_what_is_known_of_a_target_or_of_all_members(name, traits):
    assert " ".join(target.traits_of(parse_target(name).processor)) == traits


@pytest.mark.parametrize("processor", target.PROCESSORS, ids=NAMES)
def test_what_works_is_a_trait_and_stands_with_no_generic_target(processor):
    assert set(processor.works_with) <= target.TRAITS.keys() - {"apu", "discrete"}
    assert not (processor.works_with and processor.name.endswith("-generic"))
    if "vmm" in processor.works_with:
        assert processor.is_apu is False


def test_members_of_a_generic_target_are_those_that_name_it():
    generic = parse_target("gfx9-4-generic").processor

    assert [member.name for member in target.members(generic)] == ["gfx942", "gfx950"]
    assert all(
        target.members(one) == (one,)
        for one in target.PROCESSORS
        if not one.name.endswith("-generic")
    )


# What is accepted


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_the_table_is_a_target(name):
    assert str(parse_target(name)) == name


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["gfx1201"], "gfx1201"),
        (["gfx1201,gfx1100"], "gfx1100,gfx1201"),
        (["gfx1201", "gfx1100"], "gfx1100,gfx1201"),
        (["gfx1201,gfx1201"], "gfx1201"),
        (["gfx1030,gfx90a,gfx942,gfx906"], "gfx906,gfx90a,gfx942,gfx1030"),
        (["gfx120X-all"], "gfx1200,gfx1201"),
        (["rdna4,gfx1201"], "gfx1200,gfx1201"),
        (
            ["portable"],
            "gfx1100,gfx1101,gfx1102,gfx1103,gfx1150,gfx1151,gfx1200,gfx1201",
        ),
        (["gfx90a:xnack-:sramecc+"], "gfx90a:sramecc+:xnack-"),
        (["gfx90a:xnack-,gfx90a:xnack+"], "gfx90a:xnack+,gfx90a:xnack-"),
        (["gfx11-generic,gfx1100"], "gfx11-generic,gfx1100"),
    ],
)
def test_set_has_one_way_to_be_written(values, expected):
    assert canonical(*values) == expected


def test_names_are_the_targets_one_by_one():
    assert parse_target_set(["gfx1201,gfx1100"]).names == ("gfx1100", "gfx1201")


@pytest.mark.parametrize(
    ("value", "tag"),
    [
        ("gfx1201", "gfx1201"),
        ("gfx1201,gfx1100", "gfx1100_gfx1201"),
        ("gfx90a:xnack-:sramecc+", "gfx90a.sramecc-on.xnack-off"),
        ("gfx11-generic", "gfx11-generic"),
    ],
)
def test_tag_is_readable(value, tag):
    assert parse_target_set([value]).tag == tag


def test_tag_of_a_large_set_fits_beside_other_things():
    everything = parse_target_set(NAMES)

    assert re.fullmatch(r"gfx9-generic_and-\d+-more_[0-9a-f]{32}", everything.tag)
    assert len(everything.tag) <= 96
    assert everything.tag != parse_target_set(NAMES[1:]).tag
    assert everything.tag != parse_target_set([*NAMES[:1], *NAMES[2:]]).tag


def test_each_option_is_a_set_and_equal_ones_are_one():
    sets = parse_many(["gfx1201", "gfx1200,gfx1201", "rdna4", "gfx1201,gfx1201"])

    assert [str(targets) for targets in sets] == ["gfx1201", "gfx1200,gfx1201"]


def test_no_option_is_no_set():
    assert parse_many([]) == []


# What is refused


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("gfx12O1", "target 'gfx12O1' is not known: did you mean gfx1201?"),
        ("gfx12o1", "target 'gfx12o1' is not known: did you mean gfx1201?"),
        ("gfxl201", "target 'gfxl201' is not known: did you mean gfx1201?"),
        ("GFX1201", "target 'GFX1201' is not known: did you mean gfx1201?"),
        ("1201", "target '1201' is not known: did you mean gfx1201?"),
        ("900:xnack+", "target '900:xnack+' is not known: did you mean gfx900:xnack+?"),
        ("GFX900:\a", "target 'GFX900:\\x07' is not known: did you mean gfx900?"),
        ("gfx900:\a ", "target 'gfx900:\\x07 ' is not known: did you mean gfx900?"),
        ("gfx-1201", "target 'gfx-1201' is not known: did you mean gfx1201?"),
        ("GFX90A:xnack+", "target 'GFX90A:xnack+' is not known: did you mean gfx90a:xnack+?"),
        ("gfx120x-all", "target 'gfx120x-all' is not known: did you mean gfx120X-all?"),
        ("gfx9999", "target 'gfx9999' is not known: did you mean gfx909?"),
        ("cuda", "target 'cuda' is not known"),
        (" gfx1201 ", "target ' gfx1201 ' has blanks around it: write gfx1201"),
        ("gfx1201\n", "target 'gfx1201\\n' has blanks around it: write gfx1201"),
        ("gfx900:xnack+ ", "target 'gfx900:xnack+ ' has blanks around it: write gfx900:xnack+"),
        ("   ", "target '   ' is only blanks: give a name such as gfx1201"),
        ("", "target '' is empty: give a name such as gfx1201"),
        ("gfx1201,", "target 'gfx1201,' has an empty name between its commas: write gfx1201"),
        (",", "target ',' has an empty name between its commas: give a name such as gfx1201"),
        (
            "gfx1100;gfx1201",
            "target 'gfx1100;gfx1201' must have commas between its names: write gfx1100,gfx1201",
        ),
        (
            "--force",
            (
                "target '--force' looks like an option that was taken as the value of --target: "
                "give a name first"
            ),
        ),
        (
            "native",
            "target 'native' cannot be used, a build sees no GPU: give a name such as gfx1201",
        ),
        (
            "gfx90a:xnack",
            "target 'gfx90a:xnack' says xnack without a sign: write gfx90a:xnack+ or gfx90a:xnack-",
        ),
        (
            "gfx1201:xnack+",
            "target 'gfx1201:xnack+' asks for 'xnack+', which gfx1201 does not have; it has: none",
        ),
        (
            "gfx1201:xnack",
            "target 'gfx1201:xnack' asks for 'xnack', which gfx1201 does not have; it has: none",
        ),
        (
            "gfx900:",
            "target 'gfx900:' asks for '', which gfx900 does not have; it has: xnack+ or xnack-",
        ),
        (
            "gfx90a:xnack+:xnack-",
            "target 'gfx90a:xnack+:xnack-' names xnack twice: write gfx90a:xnack-",
        ),
        (
            "gfx90a,gfx90a:xnack+",
            (
                "targets gfx90a and gfx90a:xnack+ exclude each other: a feature is named for all "
                "of gfx90a or for none"
            ),
        ),
    ],
)
def test_refusal_says_what_was_given_and_what_to_write(value, message):
    assert refusal(value) == message


def test_refusal_of_gfx_alone_lists_the_families():
    assert "gfx120X-all, " in refusal("gfx")


def test_hint_is_the_command_that_lists_the_targets():
    with pytest.raises(TargetError) as caught:
        parse_target_set(["gfx12O1"])

    assert caught.value.hint == "invoke list --targets prints every target"


@pytest.mark.parametrize(
    ("value", "is_fine"),
    [
        # What Clang 22 says about the same combinations.
        ("gfx90a,gfx90a:xnack+", False),
        ("gfx90a:xnack+,gfx90a:xnack-", True),
        ("gfx90a:xnack+,gfx90a:sramecc+", False),
        ("gfx90a:sramecc+:xnack+,gfx90a:sramecc+", False),
        ("gfx90a:xnack+,gfx942", True),
    ],
)
def test_targets_exclude_each_other_as_for_the_compiler(value, is_fine):
    if is_fine:
        parse_target_set([value])
    else:
        assert "exclude each other" in refusal(value)


def test_no_target_at_all_is_refused():
    assert refusal() == "no target is given"


def test_everything_that_is_wrong_is_told_at_once():
    with pytest.raises(TargetError) as caught:
        parse_many(["gfx12O1,gfx1200, gfx1100", "gfx1201", "native"])

    assert [line.split(" ")[1] for line in str(caught.value).splitlines()] == [
        "'gfx12O1'",
        "'",
        "'native'",
    ]


def test_same_mistake_twice_is_told_once():
    assert len(refusal("gfx12O1", "gfx12O1").splitlines()) == 1


def test_group_is_not_one_target():
    with pytest.raises(TargetError, match=r"'rdna4' is a group.*gfx1200, gfx1201"):
        parse_target("rdna4")


def test_endless_text_is_cut():
    assert len(refusal("x" * 100_000)) < 200


# ROCm releases


@pytest.mark.parametrize(
    ("value", "version"),
    [
        ("gfx1201", "6.3"),
        ("gfx1201", "6.4.1"),
        ("gfx1201", "7.2.4-1~exp1"),
        ("gfx1201", "10.0.0"),
        ("gfx1250", "7.10"),
        ("gfx1100", "6.2"),
        ("gfx1036", "5.0"),
        ("portable", "99.1"),
    ],
)
def test_release_that_knows_the_targets_is_accepted(value, version):
    check_rocm(parse_target_set([value]), version)


@pytest.mark.parametrize(
    ("value", "version", "first"),
    [("gfx1201", "6.2", "6.3"), ("gfx1250", "7.1.99", "7.2"), ("gfx950", "6.4.3", "7.0")],
)
def test_release_older_than_the_target_is_refused(value, version, first):
    with pytest.raises(TargetError) as caught:
        check_rocm(parse_target_set([value]), version)

    assert str(caught.value) == (
        f"ROCm {version} is too old for {value}: "
        f"the first release known to be built for it is {first}"
    )


def test_every_target_that_is_too_new_is_named():
    with pytest.raises(TargetError) as caught:
        check_rocm(parse_target_set(["portable"]), "6.2")

    assert re.findall(r"gfx\w+", str(caught.value)) == [
        "gfx1103",
        "gfx1150",
        "gfx1151",
        "gfx1200",
        "gfx1201",
    ]


@pytest.mark.parametrize("version", ["", "latest", "v7.2", "²"])
def test_what_is_not_a_version_is_refused(version):
    with pytest.raises(TargetError, match="does not start with a number"):
        check_rocm(parse_target_set(["gfx1201"]), version)


# Whatever is given

SIGNS = st.sampled_from("+-")
TARGETS = st.sampled_from(target.PROCESSORS).flatmap(
    lambda processor: st.permutations(processor.features).flatmap(
        lambda features: st.tuples(*([SIGNS] * len(features))).map(
            lambda signs: ":".join(
                [
                    processor.name,
                    *(f"{key}{sign}" for key, sign in zip(features, signs, strict=True)),
                ]
            )
        )
    )
)
VALUES = st.lists(TARGETS | st.sampled_from(sorted(target.GROUPS)), min_size=1, max_size=6)
NEARLY = st.text("gfx0129aO:+-,; Xalknc\n", max_size=20)


def sets_of(values):
    try:
        return parse_target_set(values)
    except TargetError:
        return None


@settings(max_examples=60, deadline=None)
@given(VALUES)
def test_what_is_written_reads_the_same(values):
    targets = sets_of(values)

    if targets:
        assert parse_target_set([str(targets)]) == targets
        assert parse_target_set(values[::-1]) == targets
        assert parse_target_set([",".join(values)]) == targets


@settings(max_examples=60, deadline=None)
@given(VALUES, VALUES)
def test_no_two_sets_have_one_tag(values, others):
    one, other = sets_of(values), sets_of(others)

    if one and other:
        assert (one.tag == other.tag) == (one == other)
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}", one.tag)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text() | NEARLY, max_size=4))
def test_any_text_is_a_set_or_refused(values):
    targets = sets_of(values)

    assert targets is None or parse_target_set([str(targets)]) == targets


@settings(max_examples=60, deadline=None)
@given(st.text() | NEARLY | TARGETS)
def test_any_text_is_a_target_or_refused(text):
    try:
        said = str(parse_target(text))
        assert str(parse_target(said)) == said
    except TargetError as error:
        said = str(error)

    assert said.isprintable()


def test_nothing_but_the_standard_library_is_loaded():
    code = "import sys, rocbake.target; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-Ic", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()

    assert not set(loaded) & {"pydantic", "yaml", "docker", "invoke", "rich", "difflib", "hashlib"}
