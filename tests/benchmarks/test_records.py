"""The records of a suite stand for its run folders: the same tables, and nothing is run again."""

import json

import numpy as np
import pytest

from collegium.benchmarks.kind import Found, Outcome
from collegium.benchmarks.records import read_records, records_of
from collegium.core.errors import DataError
from collegium.core.recipe import Recipe

VERSIONS = {"collegium": "1", "torch": "2", "transformers": "3", "threads": 2}


def outcome(settings, *methods):
    scores = {"port": np.array([True, False, True]), "farm": np.array([False])}
    found = {method: Found({"union mean": 50.0}, scores, "asked") for method in methods}
    return Outcome(found, settings, VERSIONS, {"unify": {"seconds": 2.5, "peak_bytes": 7}})


def test_records_hold_all_that_cells_found(tmp_path):
    cells = {
        ("north", "ours", 0): outcome({"a": 1, "b": {"c": 2}}, "seed", "", "soup"),  # the variant itself is not first
        ("north", "ours", 1): outcome({"a": 1, "b": {"c": 3}}, "seed", "", "soup"),
        ("", "lda@rate=0.1", 0): outcome({"a": 2, "b": {"c": 2}}, ""),
    }
    shares = Found({"accuracy": 40.0}, {"": np.array([0.25, 1 / 3])}, "clients", {"with": {"": np.array([0.5, 1.0])}})
    cells["", "fedavg", 3] = Outcome(
        {"": shares}, {"a": 1, "b": {"c": 2}}, VERSIONS, {"rounds": {"seconds": 1, "peak_bytes": 1}}
    )
    records = []
    for key, found in cells.items():
        records += records_of("mine", key, found, found.settings, {"rate": 0.1}, records[0] if records else None)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    read = read_records(path)
    assert read.keys() == cells.keys()
    for key, found in cells.items():
        again = read[key]
        assert (again.settings, again.created_with, again.stages) == (found.settings, found.created_with, found.stages)
        assert list(again.found) == list(found.found)  # the order of the table's rows
        for method, one in found.found.items():
            assert again.found[method].also.keys() == one.also.keys()
            assert all((again.found[method].also[key][""] == one.also[key][""]).all() for key in one.also)
            assert (again.found[method].values, again.found[method].asked) == (one.values, one.asked)
            assert again.found[method].scores.keys() == one.scores.keys()
            assert all((again.found[method].scores[group] == one.scores[group]).all() for group in one.scores)
            assert all(again.found[method].scores[group].dtype == one.scores[group].dtype for group in one.scores)
    differing = [record["settings"] for record in records]
    assert differing == [{"a": 1, "b": {"c": 2}}, {}, {}, {"b": {"c": 3}}, {}, {}, {"a": 2}, {}]


def test_no_file_has_no_cells(tmp_path):
    assert read_records(tmp_path / "rows.jsonl") == {}


@pytest.mark.parametrize(
    "line", ["nothing", "[]", "{}", '{"case": {"case": "", "variant": "a"}, "random_seed": 0}', '{"case": 3}']
)
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(DataError, match=r"rows.jsonl, line 1, is no record(.|\n)*take the file away"):
        read_records(path)


def test_a_key_that_there_was_not_yet_had_its_default(make_recipe):
    recipe = make_recipe()
    settings = recipe.model_dump(mode="json")
    assert outcome(settings, "").of(recipe)
    del settings["router"]
    assert outcome(settings, "").of(recipe) == (recipe.router == Recipe.model_fields["router"].default)
    settings["router"] = {"init": "lda"}
    assert not outcome(settings, "").of(recipe)
    assert not outcome({**recipe.model_dump(mode="json"), "gone": 1}, "").of(recipe)
