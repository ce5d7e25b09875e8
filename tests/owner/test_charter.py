"""The charter: what it names, what it refuses, and that its hash covers every term."""

import json
import shutil

import pytest

from collegium.core.artifacts import MANIFEST, canonical_json, sha256_of
from collegium.core.errors import ArtifactError, IncompatibleSeedModel, InputError, RecipeError
from collegium.core.recipe import Agreement, PoolSettings
from collegium.models.seed_model import load_seed_model
from collegium.owner.charter import CHARTER, POOL_DOMAIN, check_pool, check_seed, read_charter, write_charter
from collegium.selection.pool import build_pool, read_pool
from tiny import DOMAINS, make_tiny_seed

LABELS = {name: list(labels) for name, labels in DOMAINS.items()}


@pytest.fixture(scope="module")
def other_seed(tmp_path_factory):
    return load_seed_model(str(make_tiny_seed(tmp_path_factory.mktemp("other seed"), random_seed=1)))


def owners(make_recipe, **changes):
    recipe = make_recipe()
    return {name: owner.model_dump() | changes for name, owner in recipe.owners.items()}


def reseal(path):
    manifest = json.loads((path / MANIFEST).read_bytes())
    content = (path / CHARTER).read_bytes()
    manifest["files"] = {CHARTER: {"sha256": sha256_of(content), "bytes": len(content)}}
    (path / MANIFEST).write_bytes(canonical_json(manifest))


def test_a_charter_names_seed_pool_owners_labels_and_every_agreed_setting(make_charter, make_recipe, seed, pool):
    charter = make_charter(router={"preset": "paper", "temperature": 2.5}, random_seed=5)
    terms = charter.terms
    assert (terms.seed_model, terms.pool, terms.max_length) == (
        seed.fingerprint,
        pool.artifact.sha256,
        seed.max_length,
    )
    assert {name: entry.labels for name, entry in terms.owners.items()} == LABELS
    assert terms.owners["farm"].prompt == "farm about {label}"
    agreed = make_recipe(router={"preset": "paper", "temperature": 2.5}, random_seed=5).agreement
    for key in set(Agreement.model_fields) - {"max_length"}:
        assert getattr(terms, key) == getattr(agreed, key)
    assert read_charter(charter.artifact.path) == charter


def test_the_hash_is_the_same_exactly_if_the_terms_are(make_charter):
    same = {make_charter().sha256, make_charter().sha256}
    assert len(same) == 1
    changed = [{"random_seed": 1}, {"project": "other"}, {"training": {"epochs": 2}}, {"router": {"fallback": True}}]
    assert len(same | {make_charter(**change).sha256 for change in changed}) == 1 + len(changed)


def test_a_charter_holds_no_path_and_no_data_of_an_owner(charter, data_folder):
    text = b"".join(file.read_bytes() for file in charter.artifact.path.iterdir())
    assert str(data_folder).encode() not in text
    assert b"jsonl" not in text


def test_hidden_labels_stay_out_and_compete_only_where_they_are_known(make_charter, make_recipe, seed):
    charter = make_charter(owners=owners(make_recipe, publish_labels=False))
    assert all(entry.labels is None for entry in charter.terms.owners.values())
    content = (charter.artifact.path / CHARTER).read_bytes()
    assert not any(f'"{label}"'.encode() in content for labels in LABELS.values() for label in labels)
    assert charter.classes(seed, hidden={"farm": ["animal", "plant"]}).names == (("farm", "animal"), ("farm", "plant"))


def test_published_labels_compete_in_the_order_of_the_owners(charter, seed):
    classes = charter.classes(seed, hidden={"farm": ["not", "used"]})
    assert classes.names == tuple((name, label) for name, labels in LABELS.items() for label in labels)
    assert charter.pool_domain is None


@pytest.mark.parametrize("labels", [{}, {"farm": [], "port": ["ship", "sea"]}])
def test_an_owner_that_publishes_unknown_labels_is_an_error(tmp_path, make_recipe, seed, pool, labels):
    with pytest.raises(RecipeError, match=r"owners\.farm\.labels"):
        write_charter(tmp_path / "charter", make_recipe(), seed, pool, labels)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("layer", "fits"), [(0, True), (2, True), (3, False), (50, False)])
def test_the_layer_of_the_decision_must_be_one_of_the_seeds(make_charter, layer, fits):
    if fits:
        charter = make_charter(router={"decide_layer": layer})
        assert charter.routed_layers(3) == [layer]
        assert charter.trained_layers(3) == list(range(layer, 3))
        return
    with pytest.raises(RecipeError, match="decide_layer") as raised:
        make_charter(router={"decide_layer": layer})
    assert "0 to 2" in str(raised.value)


def test_a_router_in_every_layer_routes_and_trains_all_layers(make_charter):
    charter = make_charter(router={"decide": "every-layer"})
    assert charter.routed_layers(3) == charter.trained_layers(3) == [0, 1, 2]


def test_a_context_that_the_seed_cannot_have_is_refused_before_any_work(make_charter):
    with pytest.raises(RecipeError, match=r"router\.context does not fit .* kind encoder") as raised:
        make_charter(router={"context": "causal"})
    assert "token, sequence, seed" in str(raised.value)


def test_a_warm_up_without_a_causal_context_is_refused_before_any_work(make_charter):
    with pytest.raises(RecipeError, match=r"router\.warmup_tokens is for context: causal") as raised:
        make_charter(router={"warmup_tokens": 4})
    assert "0 with sequence" in str(raised.value)


def test_no_more_experts_per_token_than_experts(make_charter):
    assert make_charter(router={"experts_per_token": 2}).terms.router.experts_per_token == 2
    assert make_charter(router={"experts_per_token": 3, "fallback": True}).terms.router.experts_per_token == 3
    for router, most in [({"experts_per_token": 3}, 2), ({"experts_per_token": 4, "fallback": True}, 3)]:
        with pytest.raises(RecipeError, match="experts_per_token") as raised:
            make_charter(router=router)
        assert f"at most {most}" in str(raised.value)


def test_case_17_one_owner_alone_has_a_charter(make_charter, make_recipe):
    alone = {"farm": owners(make_recipe)["farm"]}
    assert make_charter(owners=alone).owners == ["farm"]


def test_another_seed_model_is_refused_with_both_fingerprints(charter, seed, other_seed, pool):
    check_seed(charter, seed)
    with pytest.raises(IncompatibleSeedModel) as raised:
        check_seed(charter, other_seed)
    assert seed.fingerprint in str(raised.value)
    assert other_seed.fingerprint in str(raised.value)
    with pytest.raises(IncompatibleSeedModel):
        read_pool(pool.artifact.path, other_seed)


def test_another_pool_is_refused(tmp_path, charter, seed, pool, data_folder):
    check_pool(charter, pool)
    settings = PoolSettings(data=str(data_folder / "pool.jsonl"), limit=50)
    build_pool(tmp_path / "pool", settings, seed, random_seed=0)
    with pytest.raises(ArtifactError, match="not the pool that the charter names"):
        check_pool(charter, read_pool(tmp_path / "pool", seed))
    with pytest.raises(ArtifactError, match="another kind"):
        read_pool(charter.artifact.path, seed)


def test_a_changed_term_is_noticed_and_resealing_gives_another_hash(tmp_path, charter):
    path = shutil.copytree(charter.artifact.path, tmp_path / "charter")
    terms = json.loads((path / CHARTER).read_bytes())
    (path / CHARTER).write_bytes(canonical_json(terms | {"random_seed": 9}))
    with pytest.raises(ArtifactError, match="changed|damaged"):
        read_charter(path)
    reseal(path)
    assert read_charter(path).sha256 != charter.sha256


def test_terms_that_the_hash_does_not_cover_are_refused(tmp_path, charter):
    path = shutil.copytree(charter.artifact.path, tmp_path / "charter")
    manifest = json.loads((path / MANIFEST).read_bytes())
    (path / MANIFEST).write_bytes(canonical_json(manifest | {"files": {}}))
    with pytest.raises(ArtifactError, match=r"does not name charter\.json"):
        read_charter(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b"\xff",
        lambda terms: terms | {"surprise": 1},
        lambda terms: terms | {"owners": {"Bad Name": {"prompt": "{label}", "labels": None}}},
        lambda terms: {key: value for key, value in terms.items() if key != "seed_model"},
        lambda terms: terms | {"held_out_one_in": 1},
    ],
)
def test_malformed_terms_are_refused(tmp_path, charter, content):
    path = shutil.copytree(charter.artifact.path, tmp_path / "charter")
    if callable(content):
        content = canonical_json(content(json.loads((path / CHARTER).read_bytes())))
    (path / CHARTER).write_bytes(content)
    reseal(path)
    with pytest.raises(ArtifactError, match="malformed"):
        read_charter(path)


def test_a_prompted_pool_brings_its_own_classes_and_no_owner_can_take_their_name(
    tmp_path, make_recipe, seed, data_folder
):
    rows = [{"text": f"stone {word}", "label": word} for word in ("cloud", "lamp", "chair")]
    (tmp_path / "pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = PoolSettings(data=str(tmp_path / "pool.jsonl"), prompt="the {label}")
    pool = build_pool(tmp_path / "pool", settings, seed, random_seed=0)
    charter = write_charter(tmp_path / "charter", make_recipe(), seed, pool, LABELS)
    assert charter.pool_domain == POOL_DOMAIN
    assert [label for name, label in charter.classes(seed).names if name == POOL_DOMAIN] == ["chair", "cloud", "lamp"]
    with pytest.raises(ValueError, match="pattern"):
        make_recipe(owners={POOL_DOMAIN: {"data": "x"}})


def test_two_classes_with_the_same_prompted_name_are_refused(make_charter, make_recipe, seed):
    same = owners(make_recipe)
    for owner in same.values():
        owner["prompt"] = "{label}"
    charter = make_charter(owners=same)
    charter.terms.owners["port"].labels[0] = "animal"
    with pytest.raises(InputError, match="same prompted name"):
        charter.classes(seed)
