"""The coordinator's one command, from contributions to the unified folder."""

import copy
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from collegium.core.errors import ArtifactError, InvalidContribution, RunError
from collegium.core.recipe import PoolSettings
from collegium.models.encoder import embed_texts
from collegium.models.exercises import Exercises
from collegium.models.expert_tensors import ffn_tensors
from collegium.owner.charter import write_charter
from collegium.selection.pool import build_pool
from collegium.unify import judge, unified_folder
from collegium.unify import unify as unify_module
from collegium.unify.export_targets import TARGETS, RouterValues, routing_obstacles
from collegium.unify.proxies import ProxySet
from collegium.unify.routed_model import Ingredients
from collegium.unify.unified_folder import read_unified
from collegium.unify.unify import unify

TEXTS = ["the old cow", "a pig", "hull mast keel sail near far", "wheat barley oat rye the a", "tide"]


@pytest.fixture(scope="module")
def finished(charter, contributions, pool, seed, tmp_path_factory):
    """The unified model of two trained owners."""
    folder = tmp_path_factory.mktemp("unified") / "model"
    return unify(charter, [contributions["farm"], contributions["port"]], pool, seed, folder)


@pytest.fixture
def unify_by_hand(make_charter, make_contribution, pool, seed, tmp_path):
    """Unify hand-made contributions of both owners under a charter of these settings."""

    def run(**changes):
        charter = make_charter(**changes)
        paths = [make_contribution(charter, owner) for owner in charter.owners]
        unify(charter, paths, pool, seed, tmp_path / "model")
        return read_unified(tmp_path / "model")

    return run


def no_work(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("work was done again")

    monkeypatch.setattr(unify_module, "gather", fail)


def test_a_unified_model_answers_and_knows_its_owners(finished, pool):
    unified = read_unified(finished.path)
    assert unified.experts == ["farm", "port"]
    assert [domain for domain, _ in unified.classes.names] == ["farm", "farm", "port", "port"]
    assert np.isfinite(embed_texts(unified.encoder, TEXTS)).all()
    facts = unified.facts["unification"]
    assert facts["router_init"] == "whitened"
    assert facts["proxies"] + facts["held_out_proxies"] <= 2 * 20


def test_the_experts_are_those_of_the_contributions(make_charter, make_contribution, pool, seed, tmp_path):
    charter = make_charter(joint_tuning={"keep": "never"})
    paths = [make_contribution(charter, owner) for owner in charter.owners]
    unify(charter, paths, pool, seed, tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    for index, path in enumerate(paths):
        for name, tensor in load_file(path / "expert.safetensors").items():
            _, layer, matrix, kind = name.split(".")
            assert torch.equal(tensors[f"encoder.layer.{layer}.intermediate.experts.{index}.{matrix}.{kind}"], tensor)


def test_case_24_neither_the_order_of_the_paths_nor_a_second_run_changes_the_hash(
    finished, charter, contributions, pool, seed, tmp_path
):
    reversed_paths = [contributions["port"], contributions["farm"]]
    assert unify(charter, reversed_paths, pool, seed, tmp_path / "again").sha256 == finished.sha256


def test_a_second_run_finds_the_model_there(finished, charter, contributions, pool, seed, monkeypatch):
    before = {file: file.stat().st_mtime_ns for file in finished.path.iterdir()}
    no_work(monkeypatch)
    again = unify(charter, [contributions["port"], contributions["farm"]], pool, seed, finished.path)
    assert again.sha256 == finished.sha256
    assert {file: file.stat().st_mtime_ns for file in finished.path.iterdir()} == before


def test_other_contributions_are_unified_anew(charter, make_contribution, make_expert, pool, seed, tmp_path):
    farm, port = (make_contribution(charter, owner) for owner in charter.owners)
    first = unify(charter, [farm, port], pool, seed, tmp_path / "model")
    other = make_contribution(charter, "port", expert=make_expert(random_seed=99), name="other")
    second = unify(charter, [farm, other], pool, seed, tmp_path / "model")
    assert second.sha256 != first.sha256
    assert read_unified(tmp_path / "model").artifact.sha256 == second.sha256


def test_a_damaged_model_is_made_again(charter, make_contribution, pool, seed, tmp_path):
    paths = [make_contribution(charter, owner) for owner in charter.owners]
    first = unify(charter, paths, pool, seed, tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    assert unify(charter, paths, pool, seed, tmp_path / "model").sha256 == first.sha256
    read_unified(tmp_path / "model")


def test_case_21_a_killed_run_leaves_nothing_and_the_next_one_finishes(
    finished, charter, contributions, pool, seed, tmp_path, monkeypatch
):
    class Killed(BaseException):
        pass

    def kill(*_, **__):
        raise Killed

    paths = list(contributions.values())
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(unified_folder, "save_file", kill)
        unify(charter, paths, pool, seed, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    assert unify(charter, paths, pool, seed, tmp_path / "model").sha256 == finished.sha256


def test_two_contributions_of_the_same_owner_are_refused(charter, make_contribution, make_expert, pool, seed, tmp_path):
    first = make_contribution(charter, "farm")
    second = make_contribution(charter, "farm", expert=make_expert(random_seed=5), name="farm-again")
    with pytest.raises(InvalidContribution, match="Two contributions are of farm") as error:
        unify(charter, [first, second], pool, seed, tmp_path / "model")
    assert "farm-again" in error.value.got
    assert not (tmp_path / "model").exists()


def test_no_contribution_is_refused(charter, pool, seed, tmp_path):
    with pytest.raises(InvalidContribution, match="no contribution to unify"):
        unify(charter, [], pool, seed, tmp_path / "model")


def test_a_missing_owner_is_said_and_the_others_are_unified(charter, contributions, pool, seed, tmp_path, capsys):
    unify(charter, [contributions["port"]], pool, seed, tmp_path / "model")
    assert "unified without farm: no contribution was given" in capsys.readouterr().err
    unified = read_unified(tmp_path / "model")
    assert unified.experts == ["port"]
    assert np.isfinite(embed_texts(unified.encoder, TEXTS)).all()


@pytest.mark.parametrize(
    "router", [{}, {"fallback": True}, {"init": "lda"}, {"init": "raw"}, {"init": "normalised"}], ids=str
)
def test_case_17_one_owner_works(router, make_recipe, pool, seed, make_contribution, tmp_path):
    recipe = make_recipe(router=router)
    recipe = recipe.model_copy(update={"owners": {"farm": recipe.owners["farm"]}})
    charter = write_charter(tmp_path / "charter", recipe, seed, pool, {"farm": ["animal", "plant"]})
    unify(charter, [make_contribution(charter, "farm")], pool, seed, tmp_path / "model")
    unified = read_unified(tmp_path / "model")
    assert unified.experts == ["farm", *(["seed"] if router.get("fallback") else [])]
    output = unified.encoder.model(**unified.encoder.tokenise(TEXTS), output_routing=True)
    assert torch.isfinite(output.last_hidden_state).all()
    if not router.get("fallback"):
        assert output.routings[1].experts.unique().tolist() == [0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_cases_6_and_7_the_output_dtype_is_honoured_in_file_and_configuration(dtype, unify_by_hand):
    unified = unify_by_hand(output_dtype=dtype, joint_tuning={"keep": "never"})
    folder, wanted = unified.artifact.path, getattr(torch, dtype)
    for name, tensor in load_file(folder / "model.safetensors").items():
        assert tensor.dtype == (torch.float32 if ".router." in name else wanted), name
    assert json.loads((folder / "config.json").read_text())["dtype"] == dtype
    for name, parameter in unified.encoder.model.named_parameters():
        assert parameter.dtype == (torch.float32 if ".router." in name else wanted), name
    assert np.isfinite(embed_texts(unified.encoder, TEXTS)).all()


def test_case_6_an_expert_in_another_dtype_is_refused_by_name(
    charter, make_contribution, make_expert, pool, seed, tmp_path
):
    expert = make_expert()
    padded = {name: tensor.bfloat16().repeat(2, *[1] * (tensor.dim() - 1)) for name, tensor in expert.items()}
    with pytest.raises(InvalidContribution, match=r"farm's layers\.\d\.\w+\.\w+ does not fit the seed model"):
        unify(charter, [make_contribution(charter, "farm", expert=padded)], pool, seed, tmp_path / "model")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_case_20_a_non_finite_expert_is_refused_with_the_tensors_name(
    value, charter, make_contribution, make_expert, pool, seed, tmp_path
):
    expert = make_expert()
    expert["layers.2.up_proj.bias"][3] = value
    with pytest.raises(InvalidContribution, match=r"farm's layers\.2\.up_proj\.bias holds infinite values or NaN"):
        unify(charter, [make_contribution(charter, "farm", expert=expert)], pool, seed, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_poisoned_expert_is_flagged_and_the_honest_one_is_not(
    charter, make_contribution, pool, seed, tmp_path, capsys
):
    generator = torch.Generator().manual_seed(0)
    poison = {name: torch.randn(t.shape, generator=generator) for name, t in ffn_tensors(seed, [1, 2]).items()}
    paths = [make_contribution(charter, "farm", expert=poison), make_contribution(charter, "port")]
    unify(charter, paths, pool, seed, tmp_path / "model")
    (flag,) = read_unified(tmp_path / "model").facts["unification"]["flags"]
    assert flag.startswith("farm's expert answers")
    assert "poisoned" in flag
    assert "warning: farm's expert" in " ".join(capsys.readouterr().err.split())


def test_honest_experts_are_not_flagged(unify_by_hand):
    assert unify_by_hand().facts["unification"]["flags"] == []


@pytest.mark.parametrize(
    ("keep", "accuracies", "kept"),
    [
        ("if-better", (0.5, 0.75), True),
        ("if-better", (0.5, 0.5), False),
        ("if-better", (0.75, 0.5), False),
        ("always", (0.75, 0.5), True),
    ],
)
def test_joint_tuning_is_kept_only_where_it_answers_held_out_proxies_better(
    keep, accuracies, kept, make_charter, make_contribution, pool, seed, tmp_path, monkeypatch
):
    charter = make_charter(joint_tuning={"keep": keep, "learning_rate": 0.01})
    paths = [make_contribution(charter, owner) for owner in charter.owners]
    given = iter(accuracies)
    monkeypatch.setattr(unify_module, "proxy_accuracy", lambda *_: next(given))
    unify(charter, paths, pool, seed, tmp_path / "model")
    unified = read_unified(tmp_path / "model")
    facts = unified.facts["unification"]["joint_tuning"]
    assert facts == {"kept": kept, "accuracy_before": accuracies[0], "accuracy_after": accuracies[1]}
    expert = load_file(paths[0] / "expert.safetensors")["layers.1.up_proj.weight"]
    untouched = torch.equal(unified.encoder.model.encoder.layer[1].intermediate.experts[0].up_proj.weight, expert)
    assert untouched != kept
    assert ("Joint tuning was kept" in (tmp_path / "model" / "README.md").read_text()) == kept


def test_without_joint_tuning_nothing_is_trained(unify_by_hand, monkeypatch):
    monkeypatch.setattr(unify_module, "jointly_tuned", None)
    assert unify_by_hand(joint_tuning={"keep": "never"}).facts["unification"]["joint_tuning"] == {"kept": False}


def test_the_paper_preset_works_from_end_to_end(unify_by_hand):
    unified = unify_by_hand(router={"preset": "paper"}, joint_tuning={"keep": "always", "learning_rate": 0.01})
    model = unified.encoder.model
    config = model.config
    assert (config.decide, config.context, config.weighting) == ("every-layer", "seed", "renormalised")
    assert config.learn_context_weight
    assert list(model.routers) == [0, 1, 2]
    assert [len(layer.intermediate.experts) for layer in model.encoder.layer] == [3, 3, 3]  # the seed's for its means
    assert unified.experts == ["farm", "port"]
    assert unified.facts["unification"]["temperature"] == [1.0, 1.0, 1.0]
    assert all(0 <= router.context_weight <= 1 for router in model.routers.values())
    alone = np.concatenate([embed_texts(unified.encoder, [text]) for text in TEXTS])
    np.testing.assert_allclose(embed_texts(unified.encoder, TEXTS), alone, atol=1e-5)


@pytest.mark.parametrize("fallback", [False, True])
def test_the_exportable_preset_makes_routers_that_targets_can_express_also_after_tuning(fallback, unify_by_hand):
    tuning = {"keep": "always", "learning_rate": 0.01}
    unified = unify_by_hand(router={"preset": "exportable", "fallback": fallback}, joint_tuning=tuning)
    model = unified.encoder.model
    assert list(model.routers) == [0, 1, 2]
    routers = [
        RouterValues(one.weight, one.bias, one.centre, float(one.context_weight), float(one.temperature))
        for one in model.routers.values()
    ]
    assert routing_obstacles(model.config, routers, TARGETS["mixtral"]) == []
    assert unified.facts["unification"]["joint_tuning"]["kept"]
    assert all(one.weight.std() > 0 for one in routers)


def test_two_experts_for_each_token_with_a_fallback_work(unify_by_hand):
    unified = unify_by_hand(router={"experts_per_token": 2, "fallback": True, "fallback_bias": -1.0})
    assert unified.experts == ["farm", "port", "seed"]
    assert unified.encoder.model.routers[1].bias[-1].item() == -1.0
    routing = unified.encoder.model(**unified.encoder.tokenise(TEXTS), output_routing=True).routings[1]
    assert routing.experts.shape[-1] == 2
    torch.testing.assert_close(routing.weights.sum(dim=-1), torch.ones(routing.weights.shape[:2]))
    fallback = unified.facts["unification"]["fallback"]
    assert fallback["enabled"]
    assert fallback["pool_agreement_with"] >= fallback["pool_agreement_without"]


def test_the_seeds_own_ffn_is_the_fallback_byte_for_byte_also_after_tuning(unify_by_hand, seed):
    unified = unify_by_hand(router={"fallback": True}, joint_tuning={"keep": "always", "learning_rate": 0.01})
    own = ffn_tensors(seed, [1, 2])
    for layer in (1, 2):
        expert = unified.encoder.model.encoder.layer[layer].intermediate.experts[-1]
        assert torch.equal(expert.up_proj.weight, own[f"layers.{layer}.up_proj.weight"])
        assert torch.equal(expert.down_proj.bias, own[f"layers.{layer}.down_proj.bias"])


def test_the_pools_own_classes_judge_proxies_but_stay_out_of_the_model(
    make_recipe, make_contribution, seed, data_folder, tmp_path
):
    texts = [json.loads(line)["text"] for line in (data_folder / "pool.jsonl").read_text().splitlines()]
    rows = [{"text": text, "label": "thing" if "stone" in text else "place"} for text in texts]
    (tmp_path / "pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = PoolSettings(data=str(tmp_path / "pool.jsonl"), prompt="about a {label}")
    pool = build_pool(tmp_path / "pool", settings, seed, random_seed=0)
    labels = {"farm": ["animal", "plant"], "port": ["ship", "sea"]}
    charter = write_charter(tmp_path / "charter", make_recipe(pool=settings.model_dump()), seed, pool, labels)
    paths = [make_contribution(charter, owner) for owner in charter.owners]
    unify(charter, paths, pool, seed, tmp_path / "model")
    unified = read_unified(tmp_path / "model")
    assert unified.classes.domains == ["farm", "port"]
    assert unified.classes.embeddings.shape == (4, 32)


def test_proxies_without_a_held_out_one_give_no_figures_instead_of_wrong_ones(
    charter, make_contribution, pool, seed, tmp_path, held_out_rows
):
    rows = [row for row in range(len(pool)) if row not in held_out_rows][:9]
    paths = [make_contribution(charter, owner, rows=rows) for owner in charter.owners]
    unify(charter, paths, pool, seed, tmp_path / "model")
    facts = read_unified(tmp_path / "model").facts["unification"]
    assert facts["held_out_proxies"] == 0
    assert facts["joint_tuning"] == {"kept": False, "accuracy_before": None, "accuracy_after": None}
    assert facts["temperature"] == [1.0]
    assert facts["flags"] == []


def test_an_expert_that_makes_the_model_explode_fails_before_anything_is_written(
    charter, make_contribution, make_expert, pool, seed, tmp_path
):
    huge = {name: torch.full_like(tensor, 3e38) for name, tensor in make_expert().items()}
    with pytest.raises(RunError, match="non-finite"):
        unify(charter, [make_contribution(charter, "farm", expert=huge)], pool, seed, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_unifying_leaves_the_seed_alone(charter, make_contribution, pool, seed, tmp_path):
    before = copy.deepcopy(seed.model.state_dict())
    unify(charter, [make_contribution(charter, "farm")], pool, seed, tmp_path / "model")
    after = seed.model.state_dict()
    assert before.keys() == after.keys()
    assert all(
        torch.equal(tensor, after[name]) and tensor.dtype == after[name].dtype for name, tensor in before.items()
    )


def test_without_a_proxy_to_train_on_the_closed_form_stays(unify_by_hand, monkeypatch):
    monkeypatch.setattr("collegium.unify.proxies.is_held_out", lambda *_: True)
    facts = unify_by_hand().facts["unification"]
    assert facts["proxies"] == 0
    assert facts["joint_tuning"] == {"kept": False}


@pytest.mark.parametrize(
    ("answers", "flagged"),
    [("right", False), ("half right", False), ("constant", True), ("shuffled", True)],
)
def test_an_expert_is_flagged_when_it_agrees_no_better_than_chance(answers, flagged, monkeypatch):
    right = np.tile(np.arange(4), 10)
    given = {
        "right": right,
        "half right": np.where(np.arange(40) % 2, right, (right + 1) % 4),
        "constant": np.zeros(40, int),
        "shuffled": np.roll(right, 1),
    }[answers]

    class Answered(Exercises):
        items = ["text"] * 40

        def take(self, rows):
            return self

        def answers(self, model):
            assert model == "expert"
            return given, right

        __add__ = collate = loss = None

    held_out = ProxySet(Answered(), np.ones((40, 1), np.float32))
    ingredients = object.__new__(Ingredients)  # only what is looked at
    for name, value in {"experts": {"farm": {}}, "held_out": held_out, "seed": "seed"}.items():
        object.__setattr__(ingredients, name, value)
    monkeypatch.setattr(judge, "dense_model", lambda *_: SimpleNamespace(model="expert"))
    assert bool(judge.flag_experts(ingredients)) == flagged


def test_another_pool_than_the_charters_is_refused(charter, contributions, seed, data_folder, tmp_path):
    other = build_pool(tmp_path / "pool", PoolSettings(data=str(data_folder / "pool.jsonl"), limit=50), seed, 0)
    with pytest.raises(ArtifactError, match="not the pool that the charter names"):
        unify(charter, list(contributions.values()), other, seed, tmp_path / "model")
