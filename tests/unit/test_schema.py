import json

import jsonschema
import pytest
import yaml

from rocbake import project, schema
from rocbake.finding import Examination, Finding

FILES = sorted(
    [*project.ROOT.glob("containers/*/container.yaml"), *project.ROOT.glob("recipes/*/recipe.yaml")]
)


def validator(kind):
    described = json.loads((schema.FOLDER / f"{kind}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(described)
    return jsonschema.Draft202012Validator(described)


def test_committed_schemas_are_current(tmp_path):
    written = schema.write(tmp_path / "schemas")

    assert {one.name for one in written} == {one.name for one in schema.FOLDER.iterdir()}
    for path in written:
        assert (schema.FOLDER / path.name).read_text() == path.read_text(), (
            "python -m rocbake.schema"
        )
        described = json.loads(path.read_text())
        assert described["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        assert "$id" not in described


@pytest.mark.parametrize("path", FILES, ids=[one.parent.name for one in FILES])
def test_own_files_are_valid_as_an_editor_reads_them(path):
    value = yaml.safe_load(path.read_text())

    validator(path.stem).validate(value)


@pytest.mark.parametrize("path", FILES, ids=[one.parent.name for one in FILES])
def test_first_line_leads_to_the_schema(path):
    start, _, place = path.read_text().splitlines()[0].partition("=")

    assert start == "# yaml-language-server: $schema"
    assert (path.parent / place).resolve() == (schema.FOLDER / f"{path.stem}.json").resolve()


def test_number_of_a_version_is_taken():
    recipe = {"summary": "one", "version": 7.10, "sdk": "rocm", "runtime": "rocm"}

    validator("recipe").validate(recipe)


@pytest.mark.parametrize(
    "fault",
    [
        {"version": "one"},
        {"sdk": None},
        {"colour": "red"},
        {"sources": "text"},
        {"sources": [{"url": "https://example.invalid/x", "git": "https://example.invalid/x"}]},
        {"sources": [{"git": "https://example.invalid/x", "commit": "main"}]},
    ],
)
def test_fault_is_seen(fault):
    recipe = {"summary": "one", "version": "1", "sdk": "rocm", "runtime": "rocm"}

    validator("recipe").validate(recipe)

    with pytest.raises(jsonschema.ValidationError):
        validator("recipe").validate(recipe | fault)


def test_what_the_doctor_prints_is_as_published():
    findings = [
        Finding(subject="a", says="b"),
        Finding(subject="a", says="b", remedy="c", exit_code=7),
    ]
    printed = Examination.of(findings).model_dump(mode="json", by_alias=True)

    validator("doctor").validate(printed)
    assert printed["findings"][1]["state"] == "fail"
    with pytest.raises(jsonschema.ValidationError):
        validator("doctor").validate(printed | {"worst": "fine"})
    with pytest.raises(jsonschema.ValidationError):
        validator("doctor").validate({"schema": 1, "findings": []})
