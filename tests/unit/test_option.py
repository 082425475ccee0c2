import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocbake import container, golden, lock, option, project, target
from rocbake.document import DocumentError
from rocbake.errors import UsageError
from rocbake.option import Option, Rule
from rocbake.store import Store

SDK = "containers/sdk/container.yaml"
TOOL = "recipes/tool/recipe.yaml"
TRAITS = ", ".join(target.TRAITS)
ONE = "expected one of 'every' and 'any'"
NAMES = [processor.name for processor in target.PROCESSORS]
VMM = """\
options:
  vmm:
    summary: virtual memory
    values: ["on", "off"]
    rules:
      - { every: vmm, value: "on" }
      - { any: apu, value: "off" }
    otherwise: "off"
"""


def parsed(*values):
    return target.parse_target_set(values)


def values(options, targets, **asked):
    choices = option.resolve(options, parsed(targets), asked)
    return {name: choice.value for name, choice in choices.items()}


@pytest.fixture(scope="module")
def ggml():
    """The options of ggml's engines, with all that their rules have looked at."""
    return {
        "graphs": one({"any": "apu", "value": "off"}, values=("on", "off"), otherwise="on"),
        "hipblaslt": one(
            {"every": "hipblaslt", "value": "on"}, values=("on", "off"), otherwise="off"
        ),
        "rocwmma": one(values=("on", "off"), otherwise="off"),
        "vmm": one({"every": "vmm", "value": "on"}, values=("on", "off"), otherwise="off"),
    }


def test_containers_rule_is_the_one_tried_here(ggml):
    theirs = container.load_all(project.ROOT)["ggml"].file.options["graphs"]

    assert theirs.rules == ggml["graphs"].rules
    assert theirs.otherwise == ggml["graphs"].otherwise


@pytest.fixture
def with_vmm(checkout, monkeypatch):
    """Let the small project's SDK have one option."""
    monkeypatch.chdir(checkout.root)
    append(checkout, SDK, VMM)
    return checkout


def append(checkout, name, text):
    path = checkout.root / name
    path.write_text(path.read_text() + text)


# What the rules give


@pytest.mark.parametrize(
    ("targets", "on"),
    [
        ("gfx1201", "graphs hipblaslt vmm"),
        ("rdna4", "graphs hipblaslt vmm"),
        ("gfx12-generic", "graphs hipblaslt vmm"),
        ("gfx1100,gfx1201", "graphs hipblaslt vmm"),
        ("gfx1103,gfx1201", ""),
        ("gfx1151", "hipblaslt"),
        ("gfx90a:xnack-", "graphs hipblaslt"),
        ("gfx942", "graphs"),
        ("gfx1201,gfx942", "graphs"),
        ("gfx1030,gfx1201", "graphs"),
        ("gfx11-generic", ""),
        ("portable", ""),
    ],
)
def test_ggml_is_built_with_what_each_target_of_the_set_can_take(ggml, targets, on):
    given = values(ggml, targets)

    assert sorted(given) == ["graphs", "hipblaslt", "rocwmma", "vmm"]
    assert " ".join(name for name, value in given.items() if value == "on") == on


def one(*rules, values=("a", "b", "c"), otherwise="c"):
    return Option(summary="s", values=values, rules=rules, otherwise=otherwise)


@pytest.mark.parametrize(
    ("targets", "value", "why"),
    [
        ("gfx1201", "a", "every target has vmm"),
        ("gfx1151,gfx1201", "b", "gfx1151 has apu"),
        ("gfx11-generic,gfx1201", "b", "gfx1103 of gfx11-generic has apu"),
        ("gfx900:xnack+", "c", "no rule holds"),
        ("gfx902:xnack+", "b", "gfx902 has apu"),
    ],
)
def test_first_rule_that_holds_decides_and_says_why(targets, value, why):
    rules = Rule(every="vmm", value="a"), Rule(any="apu", value="b"), Rule(any="vmm", value="c")

    choice = option.resolve({"x": one(*rules)}, parsed(targets), {})["x"]

    assert (choice.value, choice.why, choice.is_overridden) == (value, why, False)


def test_option_without_rules_is_what_it_is_otherwise():
    choice = option.resolve({"x": one()}, parsed("gfx1201"), {})["x"]

    assert (choice.value, choice.why) == ("c", "it has no rules")


def test_what_is_asked_for_takes_the_place_of_rules(ggml):
    choices = option.resolve(ggml, parsed("gfx1201"), {"vmm": "off", "graphs": "on", "x": "y"})

    assert list(choices) == sorted(ggml)
    assert (choices["vmm"].value, choices["vmm"].why) == ("off", "asked for")
    assert [name for name, choice in choices.items() if choice.is_overridden] == ["vmm"]
    assert choices["graphs"].why == "no rule holds"


def test_value_that_an_option_has_not_is_refused(ggml):
    with pytest.raises(UsageError, match="vmm: expected on or off, got 'yes'"):
        option.resolve(ggml, parsed("gfx1201"), {"vmm": "yes"})


VALUES = ("a", "b", "c")
TRAIT = st.sampled_from([*target.TRAITS])
RULE = st.builds(Rule, every=TRAIT, value=st.sampled_from(VALUES)) | st.builds(
    Rule, any=TRAIT, value=st.sampled_from(VALUES)
)
OPTION = st.builds(
    Option,
    summary=st.just("s"),
    values=st.just(VALUES),
    rules=st.lists(RULE, max_size=4).map(tuple),
    otherwise=st.sampled_from(VALUES),
)
SET = st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True)


@given(OPTION, SET, st.randoms())
def test_any_rules_give_one_of_the_values_whatever_the_order_of_targets(rules, names, random):
    shuffled = list(names)
    random.shuffle(shuffled)

    given_ = option.resolve({"x": rules}, parsed(*names), {})

    assert given_["x"].value in VALUES
    assert option.resolve({"x": rules}, parsed(*shuffled), {}) == given_


@given(OPTION, SET)
def test_members_decide_as_their_generic_target_does(rules, names):
    members = {
        member.name
        for name in names
        for member in target.members(target.parse_target(name).processor)
    }

    assert values({"x": rules}, ",".join(names)) == values({"x": rules}, ",".join(members))


# Tags


def tag(targets, **given):
    choices = {name: option.Choice(value, "as ruled", "") for name, value in given.items()}
    return option.tag(parsed(targets), choices)


def test_tag_names_what_is_not_as_ruled_by_name():
    choices = {"zz": option.Choice("on", "off", ""), "b-c": option.Choice("1.5", "2", "")}
    as_ruled = {"a": option.Choice("on", "on", "")}

    assert option.tag(parsed("gfx1201"), as_ruled) == "gfx1201"
    assert option.tag(parsed("gfx1201"), as_ruled | choices) == "gfx1201_b-c-1.5_zz-on"


def test_longest_tag_is_one_that_oci_takes():
    given_ = dict.fromkeys((f"option{number}" for number in range(20)), "on")
    others = given_ | {"option3": "off"}

    tags = [
        tag(targets, **some)
        for targets in ("gfx1201", "portable", ",".join(NAMES))
        for some in (given_, others)
    ]

    assert len(set(tags)) == len(tags)
    assert max(map(len, tags)) <= 128
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", one) for one in tags)


SETTINGS = st.dictionaries(
    st.sampled_from(["a", "a-b", "a-b-c"]), st.sampled_from(["1", "b", "c", "1.b"])
)


@given(SETTINGS, SETTINGS)
def test_no_two_settings_have_one_tag(first, second):
    assert (tag("gfx1201", **first) == tag("gfx1201", **second)) == (first == second)


# What is wrong in a file


def reasons(checkout):
    with pytest.raises(DocumentError) as caught:
        project.load(checkout.root)
    return str(caught.value).splitlines()


WRONG = [
    (
        "every: vmm",
        "every: vm",
        "11:18",
        ".rules.0.every: there is no trait 'vm'; did you mean 'vmm'?",
    ),
    ("y: apu", "y: x", "12:16", ".rules.1.any: there is no trait 'x'; there are " + TRAITS),
    ('"on" }', "onn }", "11:30", ".rules.0.value: there is no value 'onn'; did you mean 'on'?"),
    ("any: apu,", "any: apu, every: vmm,", "12:9", f".rules.1: {ONE}, got both"),
    ("any: apu, ", "", "12:9", f".rules.1: {ONE}, got neither"),
    ("any: apu", "any: ", "12:9", f".rules.1: {ONE}, got neither"),
    (': "off"\n', ": of\n", "13:16", ".otherwise: there is no value 'of'; did you mean 'off'?"),
    ('"off"]', '"off", "on"]', "9:27", ".values.2: 'on' stands here again"),
    ('["on", "off"]', "[]", "9:13", ".values: expected at least one item; got a list"),
]


@pytest.mark.parametrize(("old", "new", "place", "reason"), WRONG)
def test_option_that_says_nothing_sensible_is_refused(with_vmm, old, new, place, reason):
    with_vmm.edit(SDK, old, new)

    assert reasons(with_vmm) == [f"{SDK}:{place}: options.vmm{reason}"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("any: apu", "ny: apu", "12:11: unknown key 'ny'; did you mean 'any'?"),
        ('    otherwise: "off"\n', "", "8:5: 'otherwise' is missing"),
        ("vmm:\n", "VMM:\n", "8:5: options.VMM: the name is not of the form 'words-with-dashes'"),
    ],
)
def test_option_of_another_form_is_refused(with_vmm, old, new, reason):
    with_vmm.edit(SDK, old, new)

    assert reasons(with_vmm) == [f"{SDK}:{reason}"]


def test_name_or_value_that_would_make_tags_ambiguous_is_refused(with_vmm):
    with_vmm.edit(SDK, "vmm:\n", "gfx12:\n")
    (reason,) = reasons(with_vmm)
    assert reason.startswith(f"{SDK}:8:5: options.gfx12: what begins with gfx is a GPU target in")

    with_vmm.edit(SDK, '["on", "off"]', '["on", "off", "o-n"]')
    (reason,) = reasons(with_vmm)
    assert reason.startswith(f"{SDK}:9:27: options.gfx12.values.2: String should match pattern")


def test_options_are_a_mapping(with_vmm):
    with_vmm.edit(TOOL, "version:", "options: [vmm]\nversion:")

    assert reasons(with_vmm) == [f"{TOOL}:2:10: options: expected a mapping; got a list"]


def test_name_stands_once_among_a_recipe_and_its_containers(with_vmm):
    append(with_vmm, TOOL, VMM)
    append(with_vmm, "containers/base/container.yaml", VMM)

    assert reasons(with_vmm) == [
        f"{SDK}:8:5: options.vmm: container base has an option of this name already"
    ]
    with_vmm.edit(SDK, VMM, "")
    assert reasons(with_vmm) == [
        f"{TOOL}:9:5: options.vmm: container base has an option of this name already"
    ]


def test_everything_that_is_wrong_is_told_at_once(with_vmm):
    with_vmm.edit(SDK, "every: vmm", "every: vm")
    with_vmm.edit(SDK, 'otherwise: "off"', "otherwise: none")
    append(with_vmm, TOOL, VMM.replace("vmm:", "other:").replace("any: apu", "any: gpu"))

    assert [line.rpartition("there is no ")[2] for line in reasons(with_vmm)] == [
        "trait 'vm'; did you mean 'vmm'?",
        "value 'none'; did you mean 'on'?",
    ]
    with_vmm.edit(SDK, "every: vm,", "every: vmm,")
    with_vmm.edit(SDK, "otherwise: none", "otherwise: on")
    assert reasons(with_vmm) == [
        f"{TOOL}:13:16: options.other.rules.1.any: there is no trait 'gpu'; did you mean 'apu'?"
    ]


# Whose options a recipe has


def test_recipe_has_the_options_of_its_sdk_s_chain_and_its_own(with_vmm):
    for name, file in (("base-own", "containers/base/container.yaml"), ("own", TOOL)):
        append(with_vmm, file, VMM.replace("vmm:", f"{name}:"))
    append(with_vmm, "containers/small/container.yaml", VMM.replace("vmm:", "runtimes:"))

    tool = with_vmm.load().recipes["tool"]

    assert sorted(tool.options) == ["base-own", "own", "vmm"]


def test_option_in_a_recipe_may_have_the_name_of_one_in_a_container_it_is_not_built_in(with_vmm):
    append(with_vmm, "containers/small/container.yaml", VMM.replace("vmm:", "own:"))
    append(with_vmm, TOOL, VMM.replace("vmm:", "own:"))

    assert "own" in with_vmm.load().recipes["tool"].options


# --set


@pytest.mark.parametrize("word", ["vmm", "vmm=", "=on", "", "="])
def test_setting_without_name_or_value_is_refused(word):
    with pytest.raises(UsageError) as caught:
        option.parse(["a=b", word])

    assert str(caught.value) == f"--set: expected NAME=VALUE, got {word!r}"


def test_setting_may_be_said_twice_and_not_in_two_ways():
    assert option.parse(["a=b", "c=d=e", "a=b"]) == {"a": "b", "c": "d=e"}
    with pytest.raises(UsageError, match="--set a: expected one value, got 'b' and 'c'"):
        option.parse(["a=b", "a=c"])


RECIPES = {
    "one": {"vmm": one(values=("on", "off"), otherwise="on"), "set": one()},
    "two": {"vmm": one(values=("on", "off", "auto"), otherwise="on")},
    "none": {},
}


def told(chosen, **asked):
    try:
        option.check(asked, recipes=RECIPES, chosen=chosen)
    except UsageError as wrong:
        return str(wrong).splitlines()
    return []


@pytest.mark.parametrize(
    ("chosen", "asked", "said"),
    [
        (["one"], {"vmm": "on", "set": "a"}, []),
        (["none", "two"], {"vmm": "auto"}, []),
        (["one", "two"], {"vmm": "auto"}, ["--set vmm: expected on or off, got 'auto' for one"]),
        (["one"], {"vm": "on"}, ["--set vm=on: no recipe has an option 'vm'; did you mean 'vmm'?"]),
        (
            ["one"],
            {"xy": "on"},
            ["--set xy=on: no recipe has an option 'xy'; one has set, vmm; two has vmm"],
        ),
        (
            ["none"],
            {"set": "a", "vmm": "on"},
            [
                "--set set=a: none has no option 'set'; one has",
                "--set vmm=on: none has no option 'vmm'; one, two has",
            ],
        ),
    ],
)
def test_setting_that_no_chosen_recipe_takes_is_refused(chosen, asked, said):
    assert told(chosen, **asked) == said


def test_setting_is_refused_where_there_are_no_options():
    with pytest.raises(UsageError, match="no recipe has an option 'vmm'; there are none"):
        option.check({"vmm": "on"}, recipes={"none": {}}, chosen=["none"])


# In plans and artifacts


def test_plan_has_each_option_and_a_tag_of_its_own_where_rules_are_overridden(with_vmm):
    append(with_vmm, TOOL, VMM.replace("vmm:", "alpha:"))
    ruled, same, other = (
        with_vmm.plan(),
        with_vmm.plan(vmm="on"),
        with_vmm.plan(vmm="off"),
    )

    assert list(ruled.options.items()) == [("alpha", "on"), ("vmm", "on")]
    assert same == ruled
    assert (ruled.tag, other.tag) == ("gfx1201", "gfx1201_vmm-off")
    assert (other.options["vmm"], other.overridden) == ("off", {"vmm": "off"})
    assert other.key != ruled.key
    assert other.layers == ruled.layers
    assert other.reference == "rocbake/tool:gfx1201_vmm-off"
    assert other.stem == "tool-1.10-rocm7.2.4-gfx1201_vmm-off-x86_64-linux-gnu"
    assert other.words == "--recipe tool --target gfx1201 --set vmm=off"


def test_recipe_without_options_has_none_in_its_plan(checkout):
    made = checkout.plan(vmm="off")

    assert (made.options, made.overridden, made.tag) == ({}, {}, "gfx1201")


def test_values_count_for_the_key_and_words_about_them_do_not(with_vmm):
    before = with_vmm.plan().key

    with_vmm.edit(SDK, "virtual memory", "another summary")
    with_vmm.edit(SDK, '      - { any: apu, value: "off" }\n', "")
    assert with_vmm.plan().key == before

    with_vmm.edit(SDK, "every: vmm", "every: apu")
    assert with_vmm.plan().key != before


def test_no_lock_depends_on_options(with_vmm):
    append(with_vmm, TOOL, VMM.replace("vmm:", "alpha:"))
    tool = with_vmm.load().recipes["tool"]

    locks, recipe_lock = lock.require_fresh(tool.containers, tool)

    assert sorted(locks) == ["base", "sdk", "small"]
    assert recipe_lock.wish == lock.recipe_wish(tool)


def test_artifact_of_an_overridden_option_is_of_these_locks(with_vmm, put, tmp_path):
    kept = Store(tmp_path / "artifacts")
    for asked in ({}, {"vmm": "off"}):
        made = with_vmm.plan(**asked)
        put(kept, key=made.key, tag=made.tag, overridden=made.overridden)

    keys = golden.current_keys(with_vmm.load(), kept.entries())

    assert {entry.artifact.key for entry in kept.entries()} <= keys


@pytest.mark.parametrize("gone", ['["on"]', "option"])
def test_artifact_of_an_option_that_is_gone_is_not(with_vmm, put, tmp_path, gone):
    kept = Store(tmp_path / "artifacts")
    made = with_vmm.plan(vmm="off")
    put(kept, key=made.key, tag=made.tag, overridden=made.overridden)
    if gone == "option":
        with_vmm.edit(SDK, VMM, "")
    else:
        with_vmm.edit(SDK, VMM, VMM.partition("    rules")[0] + '    otherwise: "on"\n')
        with_vmm.edit(SDK, '["on", "off"]', gone)

    keys = golden.current_keys(with_vmm.load(), kept.entries())

    assert made.key not in keys
    assert {layer.key for layer in made.layers} <= keys
