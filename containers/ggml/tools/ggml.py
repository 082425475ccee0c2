#!/usr/bin/env python3
"""What the build.sh of every recipe in this container calls: one verb a step.

preflight                       find all that is missing, in seconds
configure SOURCE BUILD NAME -- -DX=Y ...
compile BUILD [TARGET...]
bundle DIST OUT                 what of ROCm the product needs, for the target set alone
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import bundle
import configure
import ninja
import preflight
from toolchain import ToolError


def main(words: list[str]) -> int:
    """Carry out one verb; a message and 1 where that fails."""
    words, _, definitions = _split(words)
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("preflight")
    one = verbs.add_parser("configure")
    one.add_argument("source", type=Path)
    one.add_argument("build", type=Path)
    one.add_argument("name")
    one = verbs.add_parser("compile")
    one.add_argument("build", type=Path)
    one.add_argument("target", nargs="*")
    one = verbs.add_parser("bundle")
    one.add_argument("dist", type=Path)
    one.add_argument("out", type=Path)
    asked = parser.parse_args(words)
    try:
        match asked.verb:
            case "preflight":
                preflight.preflight()
            case "configure":
                configure.configure(asked.source, asked.build, definitions, name=asked.name)
            case "compile":
                ninja.build(asked.build, asked.target)
            case "bundle":
                bundle.bundle(asked.dist, asked.out)
    except ToolError as wrong:
        for line in str(wrong).splitlines():
            print(f"error: {line}", file=sys.stderr)  # noqa: T201 - the log of the build
        return 1
    return 0


def _split(words: list[str]) -> tuple[list[str], str, list[str]]:
    place = words.index("--") if "--" in words else len(words)
    return words[:place], "--", words[place + 1 :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
