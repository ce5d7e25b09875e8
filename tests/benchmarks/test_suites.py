"""What a suite file may say, and the recipes of its cells; every suite of the project is read."""

from pathlib import Path

import pytest
import yaml

from collegium.benchmarks.suite import Suite, cell_recipe, load_suite
from collegium.core.errors import RecipeError
from collegium.core.load_recipe import parse_settings

ROOT = Path(__file__).parents[2]
SUITES = sorted((ROOT / "recipes" / "suites").glob("*.yaml"))
SMALL = {
    "name": "small",
    "recipe": "recipe.yaml",
    "seeds": [0, 1],
    "reference": "ours",
    "variants": {"ours": {"others": True}, "lda": {"set": {"router.init": "lda"}, "seeds": [1]}},
}


@pytest.fixture
def write(tmp_path, make_recipe):
    def make(**changes):
        recipe = make_recipe().model_dump(mode="json")
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        path = tmp_path / "suite.yaml"
        path.write_text(yaml.safe_dump({**SMALL, **changes}))
        return path

    return make


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_every_cell_of_the_projects_suites_has_a_valid_recipe(path):
    suite, _ = load_suite(str(path))
    assert suite.name == path.stem
    for variant in suite.variants:
        for seed in suite.seeds_of(variant):
            assert cell_recipe(suite, path, variant, seed).random_seed == seed


def test_a_variant_changes_keys_of_the_recipe(write):
    suite, path = load_suite(str(write(set={"selection.size": 7})))
    ours, lda = (cell_recipe(suite, path, variant, 1, ["training.epochs=2"]) for variant in ("ours", "lda"))
    assert (ours.router.init, lda.router.init) == ("whitened", "lda")
    assert ours.selection.size == lda.selection.size == 7
    assert ours.training.epochs == lda.training.epochs == 2
    assert ours.random_seed == lda.random_seed == 1
    assert suite.seeds_of("ours") == [0, 1]
    assert suite.seeds_of("lda") == [1]
    assert suite.part([0], None).seeds_of("lda") == []


@pytest.mark.parametrize("value", [True, None, 0.5, "lda", ["a", "b"], {"train": 1}], ids=repr)
def test_values_arrive_as_they_stand(value):
    from collegium.benchmarks.suite import _yaml

    assert yaml.safe_load(_yaml(value)) == value


def test_a_variant_may_have_fewer_owners(write):
    suite, path = load_suite(str(write(variants={"ours": {}, "alone": {"owners": ["port"]}})))
    assert list(cell_recipe(suite, path, "alone", 0).owners) == ["port"]
    assert list(cell_recipe(suite, path, "ours", 0).owners) == ["farm", "port"]
    suite, path = load_suite(str(write(variants={"ours": {"owners": ["bank"]}})))
    with pytest.raises(RecipeError, match="no owner bank"):
        cell_recipe(suite, path, "ours", 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": "theirs"}, "no variant"),
        ({"reference": "lda/soup"}, "others: true"),
        ({"reference": "ours/unified"}, "row is called ours"),
        ({"set": {"random_seed": 3}}, "list it in seeds"),
        ({"variants": {"ours": {"set": {"random_seed": 3}}}}, "list it in seeds"),
        ({"seeds": []}, "seeds"),
        ({"variants": {"ours": {"seeds": [5]}}}, "not among"),
        ({"variants": {"ours": {"sets": {}}}}, "unknown key"),
    ],
)
def test_faults_of_a_suite_are_named(write, changes, message):
    with pytest.raises(RecipeError, match=message):
        load_suite(str(write(**changes)))


def test_an_unknown_suite_names_those_that_are_there(monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(RecipeError, match="quick"):
        load_suite("nothing")
    assert load_suite("quick")[0].name == "quick"


def test_a_wrong_key_of_a_cell_is_named(write):
    suite, path = load_suite(str(write(variants={"ours": {"set": {"router.inits": "lda"}}})))
    with pytest.raises(RecipeError, match="did you mean init"):
        cell_recipe(suite, path, "ours", 0)


def test_a_seed_is_no_override(write):
    suite, path = load_suite(str(write()))
    with pytest.raises(RecipeError, match="seed of the cell"):
        cell_recipe(suite, path, "ours", 0, ["random_seed=7"])


def test_tasks_without_answers_are_refused(write):
    suite, path = load_suite(
        str(write(set={"task": "causal-text", "owners.farm.prompt": None, "owners.port.prompt": None}))
    )
    with pytest.raises(RecipeError, match="compared by their answers"):
        cell_recipe(suite, path, "ours", 0)


def test_a_suite_is_frozen_settings():
    assert parse_settings({**SMALL}, Suite).reference == "ours"
