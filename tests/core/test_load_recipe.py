"""Recipes: every fault at once with its key, overrides, presets, and every shipped file loads."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from collegium.core.errors import RecipeError
from collegium.core.load_recipe import load_recipe, parse_settings
from collegium.core.recipe import DEFAULT_STEPS, Agreement, OwnerRecipe, Recipe, TrainingSettings
from collegium.core.router_settings import PAPER_ROUTER, RouterSettings

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "recipes").glob("*.yaml"))


def minimal(**changes: object) -> dict:
    return {"seed_model": "minilm", "pool": {"data": "wordnet"}, "owners": {"bank": {}}} | changes


def fault(values: object, *overrides: str) -> str:
    with pytest.raises(RecipeError) as raised:
        parse_settings(values, Recipe, list(overrides))
    assert raised.value.exit_code == 2
    return str(raised.value)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_shipped_recipe_loads(path):
    values = yaml.safe_load(path.read_text())
    load_recipe(path, OwnerRecipe if "name" in values else Recipe)


def test_recipes_are_shipped():
    assert SHIPPED


def test_all_faults_are_reported_together_with_their_keys():
    text = fault(
        {
            "pool": {"data": "wordnet", "limit": 0},
            "owners": {"bank": {"limits": {"train": "many"}}, "Bad Name": {}},
            "training": {"epochs": 0, "precision": "float8"},
            "random_seed": -1,
        }
    )
    for key in (
        "seed_model: this key is required",
        "pool.limit",
        "owners.bank.limits.train",
        "owners.Bad Name",
        "training.epochs",
        "training.precision",
        "random_seed",
    ):
        assert f"\n    {key}" in text
    assert "7 faults" in text
    assert "(got 'float8')" in text


@pytest.mark.parametrize(
    ("values", "path", "suggestion"),
    [
        ({"selektion": {}}, "selektion", "selection"),
        ({"training": {"learning_rat": 1}}, "training.learning_rat", "learning_rate"),
        ({"owners": {"bank": {"promt": "x"}}}, "owners.bank.promt", "prompt"),
        ({"router": {"context_wait": 1}}, "router.context_wait", "context_weight"),
    ],
)
def test_an_unknown_key_is_an_error_with_the_nearest_known_one(values, path, suggestion):
    assert f"{path}: unknown key; did you mean {suggestion}?" in fault(minimal(**values))


def test_an_unknown_key_like_nothing_gets_no_suggestion():
    assert "zzzz: unknown key\n" in fault(minimal(zzzz=1))


@settings(max_examples=30, deadline=None)
@given(
    epochs=st.integers(1, 9),
    rate=st.floats(1e-9, 1.0, exclude_max=True),
    prompt=st.sampled_from(["a {label}", "{label}: text", "x=y {label}"]),
)
def test_overrides_win_at_any_depth_and_their_values_are_yaml(epochs, rate, prompt):
    overrides = [
        f"training.epochs={epochs}",
        f"training.learning_rate={rate!r}",
        f"owners.bank.prompt={prompt!r}",
        "owners.bank.limits={train: 3, test: null}",
        "router.fallback=yes",
        "pool.data=imdb",
        "owners.news.data=bbc",
    ]
    recipe = parse_settings(minimal(training={"epochs": 11, "rank": 2}), Recipe, overrides)
    assert (recipe.training.epochs, recipe.training.learning_rate, recipe.training.rank) == (epochs, rate, 2)
    assert recipe.owners["bank"].prompt == prompt
    assert (recipe.owners["bank"].limits.train, recipe.owners["bank"].limits.test) == (3, None)
    assert recipe.router.fallback is True
    assert recipe.pool.data == "imdb"
    assert recipe.owners["news"].data == "bbc"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.epochs", "key=value"),
        ("=3", "key=value"),
        ("training.epochs=[", "no YAML"),
        ("seed_model.x=1", "seed_model holds a value"),
        ("training.epoch=1", "did you mean epochs"),
    ],
)
def test_a_wrong_override_is_named(override, message):
    assert message in fault(minimal(), override)


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan"])
@pytest.mark.parametrize("key", ["training.weight_decay", "router.temperature", "router.fallback_bias"])
def test_numbers_must_be_finite(key, value):
    assert key in fault(minimal(), f"{key}={value}")


@pytest.mark.parametrize("prompt", ["a text", "a {label} and {name}", "{label", "{label}}", "{{label}}", "{label!r}"])
@pytest.mark.parametrize("place", ["pool", "owner"])
def test_a_prompt_holds_label_and_no_other_braces(prompt, place):
    if place == "pool":
        assert "pool.prompt m" in fault(minimal(pool={"data": "x", "prompt": prompt}))
    else:
        assert "owners.bank.prompt m" in fault(minimal(owners={"bank": {"prompt": prompt}}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a: [", "no valid YAML"),
        (b"a: \xff", "no valid YAML"),
        (b"", "holds no settings"),
        (b"- a", "holds no settings"),
        (b"!!python/object/apply:os.getcwd []", "no valid YAML"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path, text, message):
    (tmp_path / "r.yaml").write_bytes(text)
    with pytest.raises(RecipeError, match=message):
        load_recipe(tmp_path / "r.yaml", Recipe)
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(tmp_path / "missing.yaml", Recipe)


def test_the_exportable_preset_sees_the_token_alone_in_every_layer_and_own_keys_win():
    exportable = parse_settings(minimal(), Recipe, ["router.preset=exportable"]).router
    assert (exportable.context, exportable.decide, exportable.init) == ("token", "every-layer", "normalised")
    assert (exportable.context_weight, exportable.warmup) == (0.0, 0)
    assert parse_settings(minimal(router={"preset": "exportable", "init": "raw"}), Recipe).router.init == "raw"


def test_the_paper_preset_is_the_published_router_and_own_keys_win():
    paper = parse_settings(minimal(), Recipe, ["router.preset=paper"]).router
    assert {key: getattr(paper, key) for key in PAPER_ROUTER} == PAPER_ROUTER
    own = parse_settings(minimal(router={"preset": "paper", "vectors": "seed", "context_weight": 0.3}), Recipe).router
    assert (own.vectors, own.context_weight, own.decide) == ("seed", 0.3, "every-layer")
    assert parse_settings(minimal(), Recipe).router == RouterSettings()


@pytest.mark.parametrize(
    ("router", "message"),
    [
        ({"context": "seed"}, "context: seed is an extra pass"),
        ({"context": "token", "warmup_tokens": 3}, "warmup_tokens: 3 is for context: causal, not token"),
        ({"temperature": 0}, "temperature must be above 0"),
        ({"temperature": -1.5}, "temperature must be above 0"),
    ],
)
def test_router_settings_that_contradict_each_other_are_refused(router, message):
    assert message in fault(minimal(router=router))


def test_the_warm_up_follows_the_context_unless_it_is_set_and_survives_json():
    def warmup(**router):
        agreement = parse_settings(minimal(router=router), Recipe).agreement
        return Agreement.model_validate(agreement.model_dump(mode="json")).router.warmup

    assert (warmup(), warmup(context="token"), warmup(context="causal")) == (0, 0, 8)
    assert (warmup(context="causal", warmup_tokens=3), warmup(context="causal", warmup_tokens=0)) == (3, 0)


def test_the_agreement_holds_the_settings_of_the_recipe_and_survives_json():
    recipe = parse_settings(minimal(router={"preset": "paper", "vectors": "seed"}, random_seed=3, max_length=9), Recipe)
    agreement = recipe.agreement
    assert set(agreement.model_dump()) == set(Agreement.model_fields)
    assert all(getattr(agreement, key) == getattr(recipe, key) for key in Agreement.model_fields)
    assert Agreement.model_validate(agreement.model_dump(mode="json")) == agreement


def test_an_owners_recipe_holds_no_settings_of_the_charter():
    with pytest.raises(RecipeError, match="selection: unknown key"):
        parse_settings({"name": "bank", "data": "x", "selection": {}}, OwnerRecipe)


def test_settings_cannot_be_changed_later():
    recipe = parse_settings(minimal(), Recipe)
    with pytest.raises(ValueError, match="frozen"):
        recipe.training.epochs = 7


def test_training_takes_the_same_number_of_steps_for_every_owner_unless_epochs_are_asked_for():
    assert TrainingSettings().steps == DEFAULT_STEPS
    assert TrainingSettings().epochs is None
    by_epochs = parse_settings(minimal(training={"epochs": 2}), Recipe).training
    assert (by_epochs.steps, by_epochs.epochs) == (None, 2)
    assert TrainingSettings.model_validate(by_epochs.model_dump()) == by_epochs
    assert "exclude each other" in fault(minimal(training={"steps": 5, "epochs": 2}))


def test_a_fault_of_several_keys_does_not_print_the_whole_recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("seed_model: minilm\npool: {data: wordnet}\nowners: {farm: {data: farm.jsonl}}\n")
    with pytest.raises(RecipeError) as error:
        load_recipe(path, Recipe, ["task=causal-text", "evaluation.baselines=[btm]"])
    assert "evaluation.baselines are measured by their answers" in str(error.value)
    assert "farm.jsonl" not in str(error.value)
