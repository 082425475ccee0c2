"""Build options: what a product may be built with, and the rules by which GPU targets decide.

The rules are data, in container.yaml and recipe.yaml; they ask for traits, which targets have or
have not by the table in target.py. Everything here is pure.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from rocbake import digest, target
from rocbake.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rocbake.document import Document, Problem
    from rocbake.target import TargetSet

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
# Without a dash, so that a name and a value can be told apart in a tag.
_Value = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(\.[a-z0-9]+)*$")]
_Trait = Annotated[str, Field(json_schema_extra={"enum": [*target.TRAITS]})]

# https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pulling-manifests
_LONGEST_TAG = 128
# What is left of it beside the longest tag of a target set, and the five characters before them.
_DIGITS = _LONGEST_TAG - target.LONGEST_TAG - len("_set-")


class _Wish(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Rule(_Wish):
    """What a target set must be like for an option to have a value."""

    every: _Trait | None = Field(
        default=None, description="trait that every target of the set must have"
    )
    any: _Trait | None = Field(
        default=None, description="trait that at least one target of the set must have"
    )
    value: str = Field(description="what the option is then; one of its values")


class Option(_Wish):
    """One thing that a product can be built with or without, or in several ways."""

    summary: str = Field(min_length=1, description="one sentence")
    values: tuple[_Value, ...] = Field(min_length=1, description="what it may be")
    rules: tuple[Rule, ...] = Field(default=(), description="the first that holds decides")
    otherwise: str = Field(description="what it is where no rule holds; one of its values")


@dataclass(frozen=True)
class Choice:
    """What an option is in one build, and why.

    Attributes:
        value: One of the option's values.
        ruled: What the rules give for the target set.
        why: A few words for people.
    """

    value: str
    ruled: str
    why: str

    @property
    def is_overridden(self) -> bool:
        """Whether the rules give something else."""
        return self.value != self.ruled


def problems(
    here: Document[Any], options: Mapping[str, Option], *, taken: Mapping[str, str]
) -> list[Problem]:
    """Tell what is wrong with the options of a container.yaml or recipe.yaml.

    Args:
        here: The file.
        options: What stands in it below `options`.
        taken: Names of options that the containers below have, and which of them.
    """
    found: list[Problem] = []
    for name, one in options.items():
        messages = _name_problems(name, taken) + _value_problems(one)
        for number, rule in enumerate(one.rules):
            messages += _rule_problems(one, number, rule)
        found += [
            here.problem(
                ".".join(("options", name, *map(str, at))) + f": {what}", "options", name, *at
            )
            for at, what in messages
        ]
    return found


# A place below an option, and what is wrong there.
_Message = tuple[tuple[str | int, ...], str]


def _name_problems(name: str, taken: Mapping[str, str]) -> list[_Message]:
    if not _NAME.fullmatch(name):
        return [((), "the name is not of the form 'words-with-dashes'")]
    if name.startswith("gfx"):
        return [((), "what begins with gfx is a GPU target in every tag; take another name")]
    if name in taken:
        return [((), f"container {taken[name]} has an option of this name already")]
    return []


def _value_problems(one: Option) -> list[_Message]:
    found: list[_Message] = [
        (("values", number), f"{value!r} stands here again")
        for number, value in enumerate(one.values)
        if value in one.values[:number]
    ]
    if one.otherwise not in one.values:
        found.append((("otherwise",), _unknown("value", one.otherwise, one.values)))
    return found


def _rule_problems(one: Option, number: int, rule: Rule) -> list[_Message]:
    found: list[_Message] = []
    given = {
        key: trait for key, trait in (("every", rule.every), ("any", rule.any)) if trait is not None
    }
    if len(given) != 1:
        got = "both" if given else "neither"
        found.append((("rules", number), f"expected one of 'every' and 'any', got {got}"))
    found += [
        (("rules", number, key), _unknown("trait", trait, target.TRAITS))
        for key, trait in given.items()
        if trait not in target.TRAITS
    ]
    if rule.value not in one.values:
        found.append((("rules", number, "value"), _unknown("value", rule.value, one.values)))
    return found


def _unknown(kind: str, text: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(text, known, n=1)
    advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    return f"there is no {kind} {text!r}; {advice}"


def resolve(
    options: Mapping[str, Option], targets: TargetSet, asked: Mapping[str, str]
) -> dict[str, Choice]:
    """Decide every option of a product for a target set.

    Args:
        options: Every option it has, by name.
        targets: What is built for.
        asked: Values that take the place of what the rules give; other names do not count.

    Returns:
        By name of option, sorted.

    Raises:
        UsageError: A value that is asked for is none of the option's.
    """
    wrong = [
        _not_allowed(name, asked[name], one)
        for name, one in options.items()
        if name in asked and asked[name] not in one.values
    ]
    if wrong:
        raise UsageError("\n".join(wrong))
    choices = {}
    for name, one in sorted(options.items()):
        ruled, why = _ruled(one, targets)
        value = asked.get(name, ruled)
        choices[name] = Choice(value, ruled, why if value == ruled else "asked for")
    return choices


def _ruled(one: Option, targets: TargetSet) -> tuple[str, str]:
    """Return what the rules give, and why."""
    for rule in one.rules:
        trait = rule.every or rule.any or ""
        # Code for a generic target runs on any of its members, so they count in its place.
        every = [
            (str(single), member.name, trait in target.traits_of(member))
            for single in targets.targets
            for member in target.members(single.processor)
        ]
        having = [(name, member) for name, member, has in every if has]
        if rule.every and len(having) == len(every):
            return rule.value, f"every target has {trait}"
        if rule.any and having:
            name, member = having[0]
            of = "" if name.partition(":")[0] == member else f" of {name}"
            return rule.value, f"{member}{of} has {trait}"
    return one.otherwise, "no rule holds" if one.rules else "it has no rules"


def tag(targets: TargetSet, choices: Mapping[str, Choice]) -> str:
    """Return what tells a build from others in tags and file names; at most 128 characters.

    The target set's own tag; after it, by name, the options that are not as the rules give them.
    """
    changed = "".join(
        f"_{name}-{choice.value}"
        for name, choice in sorted(choices.items())
        if choice.is_overridden
    )
    if len(targets.tag) + len(changed) > _LONGEST_TAG:
        changed = f"_set-{digest.sha256_bytes(changed.encode())[:_DIGITS]}"
    return targets.tag + changed


def parse(words: Sequence[str]) -> dict[str, str]:
    """Read the values of `--set`, each NAME=VALUE.

    Raises:
        UsageError: Everything that is wrong with them, at once.

    >>> parse(["vmm=off", "graphs=on"])
    {'vmm': 'off', 'graphs': 'on'}
    """
    asked: dict[str, str] = {}
    wrong = []
    for word in words:
        name, sign, value = word.partition("=")
        if not (name and sign and value):
            wrong.append(f"--set: expected NAME=VALUE, got {word!r}")
        elif asked.setdefault(name, value) != value:
            wrong.append(f"--set {name}: expected one value, got {asked[name]!r} and {value!r}")
    if wrong:
        raise UsageError("\n".join(dict.fromkeys(wrong)))
    return asked


def check(
    asked: Mapping[str, str],
    *,
    recipes: Mapping[str, Mapping[str, Option]],
    chosen: Sequence[str],
) -> None:
    """Refuse what was asked for by `--set` and no chosen recipe can be built with.

    Args:
        asked: Values by name of option.
        recipes: Every recipe's options.
        chosen: The recipes that are built; those without an option just do not take it.

    Raises:
        UsageError: Everything that is wrong, at once.
    """
    wrong: list[str] = []
    for name, value in asked.items():
        holders = [recipe for recipe, options in recipes.items() if name in options]
        taking = [recipe for recipe in chosen if recipe in holders]
        if not holders:
            known = {option for options in recipes.values() for option in options}
            near = difflib.get_close_matches(name, sorted(known), n=1)
            advice = f"did you mean {near[0]!r}?" if near else _all_options(recipes)
            wrong.append(f"--set {name}={value}: no recipe has an option {name!r}; {advice}")
        elif not taking:
            wrong.append(
                f"--set {name}={value}: {', '.join(chosen)} has no option {name!r}; "
                f"{', '.join(holders)} has"
            )
        wrong += [
            f"--set {_not_allowed(name, value, recipes[recipe][name])} for {recipe}"
            for recipe in taking
            if value not in recipes[recipe][name].values
        ]
    if wrong:
        raise UsageError(
            "\n".join(wrong), hint="invoke build --target gfx1201 --dry-run  prints every option"
        )


def _not_allowed(name: str, value: str, one: Option) -> str:
    return f"{name}: expected {' or '.join(one.values)}, got {value!r}"


def _all_options(recipes: Mapping[str, Mapping[str, Option]]) -> str:
    told = [
        f"{recipe} has {', '.join(sorted(options))}"
        for recipe, options in recipes.items()
        if options
    ]
    return "; ".join(told) or "there are none"
