"""What a suite file may say, and the recipes of its cells; every suite of the project is read."""

import itertools
from pathlib import Path

import pytest
import yaml

from collegium.benchmarks.suite import Suite, cell_recipe, load_suite
from collegium.benchmarks.tuning import candidates
from collegium.core.errors import InputError, RecipeError
from collegium.core.load_recipe import parse_settings
from collegium.core.recipe import Recipe

ROOT = Path(__file__).parents[2]
SUITES = sorted((ROOT / "recipes" / "suites").glob("*.yaml"))
RATE = "training.learning_rate"
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
        for case in suite.case_names(variant):
            seed = suite.seeds_of(variant)[-1]
            assert cell_recipe(suite, path, variant, seed, case=case).random_seed == seed
        for values in itertools.product(*suite.tune.values()):
            chosen = dict(zip(suite.tune, values))
            recipe = cell_recipe(suite, path, variant, suite.seeds[0], case=case, chosen=chosen)
            assert all(value_of(recipe, key) == value for key, value in chosen.items())


def value_of(recipe, key):
    for name in key.split("."):
        recipe = getattr(recipe, name)
    return recipe


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


def test_keys_are_set_by_suite_case_variant_choice_and_command_in_this_order(write):
    suite, path = load_suite(
        str(
            write(
                set=dict.fromkeys(("selection.size", "training.epochs", "training.batch_size", RATE), 2),
                cases={"north": {"set": dict.fromkeys(("training.epochs", "training.batch_size", RATE), 3)}},
                variants={"ours": {"set": dict.fromkeys(("training.batch_size", RATE), 4)}},
            )
        )
    )
    recipe = cell_recipe(suite, path, "ours", 0, [], "north", {RATE: 5})
    assert (recipe.selection.size, recipe.training.epochs, recipe.training.batch_size) == (2, 3, 4)
    assert recipe.training.learning_rate == 5
    assert cell_recipe(suite, path, "ours", 0, [f"{RATE}=6"], "north", {RATE: 5}).training.learning_rate == 6


def test_a_whole_mapping_of_a_variant_takes_the_place_of_the_suites_keys(write):
    suite, path = load_suite(
        str(write(set={"selection.size": 7}, variants={"ours": {"set": {"selection": {"method": "random"}}}}))
    )
    recipe = cell_recipe(suite, path, "ours", 0)
    assert (recipe.selection.method, recipe.selection.size) == ("random", Recipe.model_fields["selection"].default.size)


def test_one_shot_suites_choose_on_the_validation_split(write):
    suite, path = load_suite(str(write(tune={"selection.size": [5, 6], "router.init": ["raw", "lda"]})))
    offered = candidates(suite, path, Path("out"), [], "", "ours")
    assert [cell.chosen for cell in offered] == [
        {"router.init": init, "selection.size": size} for init in ("raw", "lda") for size in (5, 6)
    ]
    assert {cell.recipe.evaluation.split for cell in offered} == {"validation"}
    assert {cell.random_seed for cell in offered} == {0}
    assert len({cell.folder for cell in offered}) == 4
    assert [cell.chosen for cell in candidates(suite, path, Path("out"), [], "", "lda")] == [  # it sets the router
        {"selection.size": 5},
        {"selection.size": 6},
    ]


def test_a_part_of_a_suite_chooses_with_the_same_seed(write):
    suite, path = load_suite(str(write(tune={"selection.size": [5, 6]}, cases={"north": {}, "south": {}})))
    part = suite.part([1], ["ours"], ["south"])
    assert part.seeds_of("ours") == [1]
    assert part.case_names("ours") == ["south"]
    assert {cell.random_seed for cell in candidates(part, path, Path("out"), [], "south", "ours")} == {0}
    with pytest.raises(InputError, match="no such case"):
        suite.part(None, None, ["west"])


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
        ({"variants": {"ours": {"cases": ["north"]}}}, "not among the suite's cases"),
        ({"cases": {"north": {"set": {"random_seed": 3}}}}, "list it in seeds"),
        ({"tune": {"random_seed": [0, 1]}}, "list it in seeds"),
        ({"tune": {"selection.size": [3]}}, "at least 2"),
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
