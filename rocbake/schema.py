"""JSON Schemas: of the files that people write, for editors, and of what verbs print, for programs.

`python -m rocbake.schema` writes them; the first line of each YAML file names its own.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pydantic.json_schema import GenerateJsonSchema

from rocbake import log, project
from rocbake.container import ContainerFile
from rocbake.finding import Examination
from rocbake.recipe import RecipeFile

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import core_schema

FOLDER = project.ROOT / "docs" / "schemas"
_MODELS: dict[str, type[BaseModel]] = {"container": ContainerFile, "recipe": RecipeFile}
# What verbs print with --json.
_RESULTS: dict[str, type[BaseModel]] = {"doctor": Examination}


class _Scalars(GenerateJsonSchema):
    """A schema for editors, to whom 7.10 is a number; here it is text like every scalar."""

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        return {**super().str_schema(schema), "type": ["string", "number"]}


def describe(name: str) -> str:
    """Return the text of the JSON Schema of a kind of file, or of what a verb prints."""
    schema = (
        _MODELS[name].model_json_schema(schema_generator=_Scalars)
        if name in _MODELS
        else _RESULTS[name].model_json_schema(mode="serialization")
    )
    return json.dumps({"$schema": _Scalars.schema_dialect, **schema}, indent=2) + "\n"


def write(folder: Path) -> list[Path]:
    """Write every schema into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in (*_MODELS, *_RESULTS):
        paths.append(folder / f"{name}.json")
        paths[-1].write_text(describe(name), encoding="utf-8")
    return paths


if __name__ == "__main__":
    for written in write(FOLDER):
        log.say(str(written))
