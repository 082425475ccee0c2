"""JSON Schemas of the files that people write, so that editors complete and check them.

`python -m rocbake.schema` writes them; the first line of each YAML file names its own.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pydantic.json_schema import GenerateJsonSchema

from rocbake import log, project
from rocbake.container import ContainerFile
from rocbake.recipe import RecipeFile

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import core_schema

FOLDER = project.ROOT / "docs" / "schemas"
_MODELS: dict[str, type[BaseModel]] = {"container": ContainerFile, "recipe": RecipeFile}


class _Scalars(GenerateJsonSchema):
    """A schema for editors, to whom 7.10 is a number; here it is text like every scalar."""

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        return {**super().str_schema(schema), "type": ["string", "number"]}


def describe(name: str) -> str:
    """Return the text of the JSON Schema of `container` or `recipe` files."""
    schema = _MODELS[name].model_json_schema(schema_generator=_Scalars)
    return json.dumps({"$schema": _Scalars.schema_dialect, **schema}, indent=2) + "\n"


def write(folder: Path) -> list[Path]:
    """Write every schema into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in _MODELS:
        paths.append(folder / f"{name}.json")
        paths[-1].write_text(describe(name), encoding="utf-8")
    return paths


if __name__ == "__main__":
    for written in write(FOLDER):
        log.say(str(written))
