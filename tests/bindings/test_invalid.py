"""Users read what is wrong in words. No model of the project shows them a regular expression."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

import offpath
from offpath.bindings.invalid import FORMS, listed, said
from offpath.bindings.wire.work_admin import SubmitRequest


def modules() -> Iterator[Any]:
    """All that can be imported here: some need programs of others."""
    for found in pkgutil.walk_packages(offpath.__path__, "offpath.", onerror=lambda name: None):
        if found.name.endswith("__main__") or ".demo." in found.name:
            continue
        try:
            yield importlib.import_module(found.name)
        except (ImportError, SystemExit):
            continue


def patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        for each in schema.values():
            yield from patterns(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from patterns(each)


def test_every_pattern_of_a_model_has_words() -> None:
    found: dict[str, str] = {}
    for module in modules():
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == module.__name__:
                schema: Any = value.model_json_schema()
            elif isinstance(value, TypeAdapter):
                schema = value.json_schema()
            else:
                continue
            found |= dict.fromkeys(patterns(schema), f"{module.__name__}.{name}")
    assert len(found) > 25
    assert {pattern: where for pattern, where in found.items() if pattern not in FORMS} == {}
    assert {pattern for pattern in FORMS if pattern not in found} == set(), "no model has these"


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ({"job": "my job"}, "job: must be letters, digits, '.', '_' and '-', the first a letter or digit"),
        ({"model": ""}, "model: is empty"),
        ({"argv": ["a\0b"]}, "argv.0: must be text without NUL"),
    ],
)
def test_a_job_with_a_wrong_word_says_which_form_is_meant(words: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SubmitRequest.model_validate({"job": "a", "gpus": 1, "model": "m", "argv": ["true"], **words})
    assert wrong in listed(caught.value)


def test_what_has_no_words_is_pydantics_and_shows_no_value() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(int).validate_python("secret")
    (error,) = caught.value.errors()
    assert said(error) == "Input should be a valid integer, unable to parse string as an integer"
    assert listed(caught.value, whole="the whole") == [f"the whole: {said(error)}"]
