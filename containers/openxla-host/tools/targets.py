"""The GPU targets that Bazel was configured for, read back: a list that is ignored would be built.

The rule that configures ROCm for OpenXLA writes them into build_defs.bzl of @local_config_rocm, as
a list in Starlark, which reads like one in Python:
https://github.com/openxla/xla/blob/main/third_party/gpus/rocm/build_defs.bzl.tpl
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from toolchain import ToolError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_WITH_ROCM = "--config=rocm"
FILE = "local_config_rocm/rocm/build_defs.bzl"
_LIST = re.compile(r"^def rocm_gpu_architectures\(\):\s*(?:\"\"\".*?\"\"\"\s*)?return (\[[^\]]*\])",
                   re.MULTILINE | re.DOTALL)  # fmt: skip


def require(external: Path, asked: list[str], words: Sequence[str] = ()) -> str | None:
    """Check that Bazel was configured for exactly these targets; say so, None without ROCm.

    Args:
        external: Where Bazel keeps its repositories.
        asked: The targets, as recipe and plan have them.
        words: What Bazel was told. If ROCm is among it, the targets must have arrived somewhere.

    Raises:
        ToolError: It was configured for others, or what for cannot be read.
    """
    path = external / FILE
    if not path.is_file():
        if _WITH_ROCM in words:
            raise ToolError(
                f"{path} is missing: Bazel was told {_WITH_ROCM}, and nothing configured ROCm\n"
                f"  expected {','.join(asked)}\n  got      no list of GPU targets"
            )
        return None
    got = configured(path.read_text(encoding="utf-8", errors="replace"))
    if sorted(got) != sorted(asked):
        raise ToolError(
            "Bazel was configured for other GPU targets than were asked for\n"
            f"  expected {','.join(asked)}\n  got      {','.join(got) or 'none'}\n"
            "a list that comes later on its command line won, or a repository from before was used"
        )
    return f"targets: Bazel is configured for {','.join(got)}"


def configured(text: str) -> list[str]:
    """Return the targets that stand in a build_defs.bzl.

    Raises:
        ToolError: None can be read there.
    """
    found = _LIST.search(text)
    try:
        targets = ast.literal_eval(found[1]) if found else None
    except (SyntaxError, ValueError):
        targets = None
    if not isinstance(targets, list) or not all(isinstance(one, str) for one in targets):
        raise ToolError(f"@{FILE} names no list of GPU targets: this is another XLA than expected")
    return targets
