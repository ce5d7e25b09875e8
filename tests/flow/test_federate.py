"""A federation of made-up clients, end to end on a tiny common expert: result, resuming, faults, and the command."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from tensorboard.backend.event_processing import event_accumulator
from typer.testing import CliRunner

from collegium.cli.main import app
from collegium.core.errors import InputError, RecipeError
from collegium.core.load_recipe import load_recipe, parse_settings
from collegium.federated import rounds
from collegium.federated.algorithms.fedavg import FedAvg, FedAvgSettings
from collegium.federated.algorithms.one_model import World
from collegium.federated.make_algorithm import ALGORITHMS as ALGORITHM_NAMES
from collegium.federated.protocol import ClientData
from collegium.federated.recipe import FederatedRecipe
from collegium.flow.federate import METRICS, federate
from collegium.flow.gather_clients import gather_clients
from collegium.flow.judging import judge
from collegium.flow.round_metrics import RoundMetrics
from tiny import DOMAINS, write_all_domains, write_rows

ROOT = Path(__file__).parents[2]
ALGORITHMS = [
    {"name": "fedavg"},
    {"name": "fedprox"},
    {"name": "scaffold"},
    {"name": "ddome", "num_experts": 3},
    {"name": "fedmix", "num_experts": 3},
    {"name": "average-ensemble", "num_experts": 2},
    {"name": "fedsr"},
    {"name": "fedadg"},
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Texts of four classes."""
    return write_all_domains(tmp_path_factory.mktemp("data") / "texts.jsonl", 60)


@pytest.fixture
def make(data, seed_folder):
    def make(**changes):
        values = {
            "data": str(data),
            "common_expert": str(seed_folder),
            "partition": {"kind": "pathological", "num_clients": 12, "classes_per_client": 2},
            "held_out_clients": 0.25,
            "algorithm": {"name": "ddome", "num_experts": 3, "local": {"learning_rate": 0.5}},
            "rounds": {"rounds": 6, "clients_per_round": 4},
            "evaluation": {"every": 2, "averaged": 2},
        }
        return parse_settings({**values, **changes}, FederatedRecipe)

    return make


@pytest.mark.parametrize("path", sorted((ROOT / "recipes" / "federated").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_of_the_project_is_valid(path):
    assert load_recipe(path, FederatedRecipe).algorithm.name in ALGORITHM_NAMES


def result(path):
    return json.loads(path.read_bytes())


def test_clients_that_judge_never_train(make, tmp_path):
    for judges in ("test", "validation"):
        found = gather_clients(make(evaluation={"clients": judges}), tmp_path / judges)
        assert len(found.training) == 6
        assert len(found.judges) == 3
        assert not set(found.training) & set(found.judges)
        rows = np.concatenate(found.rows)
        assert sorted(rows.tolist()) == list(range(240))
    test = gather_clients(make(), tmp_path / "test")
    validation = gather_clients(make(evaluation={"clients": "validation"}), tmp_path / "validation")
    assert not set(test.judges) & set(validation.judges)


def test_clients_hold_one_domain_each(make, tmp_path):
    domains = {name: {"data": str(write_rows(tmp_path / f"{name}.jsonl", name, 60)), "limit": 90} for name in DOMAINS}
    recipe = make(data=None, domains=domains, partition={"kind": "by-domain", "num_clients": 8})
    found = gather_clients(recipe, tmp_path / "run")
    assert found.classes == sorted(label for labels in DOMAINS.values() for label in labels)
    assert len(found.data) == 90 * len(DOMAINS)
    held = [{found.classes[label] for label in found.data.labels[rows]} for rows in found.rows]
    assert all(any(own <= set(labels) for labels in DOMAINS.values()) for own in held)
    assert len({frozenset(own) for own in held}) == len(DOMAINS)
    without = make(data=None, domains={"port": {"data": domains["port"]["data"], "columns": {"label": None}}})
    with pytest.raises(RecipeError, match=r"need labels(.|\n)*domains.port.columns.label"):
        gather_clients(without, tmp_path / "run")


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda one: one["name"])
def test_every_algorithm_runs_and_says_what_it_found(make, tmp_path, algorithm):
    found = result(federate(make(algorithm=algorithm), tmp_path))
    assert found["algorithm"] == algorithm["name"]
    assert found["averaged_rounds"] == [4, 6]
    assert 0 <= found["accuracy"] <= 1
    assert len(found["by_client"]) == found["clients"]["judging"] == 3
    assert sum(found["utilisation"]) == pytest.approx(1)
    assert found["bytes_down"] > found["bytes_up"] / 2 > 0
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["server_round"] for line in lines] == [1, 2, 3, 4, 5, 6]
    judged = [line["accuracy"] for line in lines if "accuracy" in line]
    assert found["accuracy"] == pytest.approx(np.mean(judged[-2:]))
    with_prior = [line["accuracy_with_prior"] for line in lines if "accuracy" in line]
    assert found["accuracy_with_prior"] == pytest.approx(np.mean(with_prior[-2:]))
    with_true_prior = [line["accuracy_with_true_prior"] for line in lines if "accuracy" in line]
    assert found["accuracy_with_true_prior"] == pytest.approx(np.mean(with_true_prior[-2:]))


def test_what_knows_the_class_shares_is_told_these_of_the_classes_and_no_more():
    fixed = FedAvg(World(features=3, shape=(3,), classes=3, num_clients=2, random_seed=0), FedAvgSettings())
    fixed.predict = lambda data, own: data.features
    answers = np.log(np.array([[0.5, 0.3, 0.2], [0.5, 0.1, 0.4], [0.3, 0.6, 0.1], [0.3, 0.6, 0.1]], np.float32))
    one = ClientData(answers[:3], answers[:3], np.array([2, 2, 2]))
    two = ClientData(answers, answers, np.array([0, 0, 0, 1]))  # 3 · 0.3 > 1 · 0.6 > 3 · 0.1: all go to class 0
    found = judge(fixed, [(one, {}), (two, {})])
    assert found["accuracy"] == pytest.approx((0 + 3 / 4) / 2)
    assert found["accuracy_with_true_prior"] == pytest.approx((1 + 3 / 4) / 2)


def bag_of_words(_model, texts):
    """A common expert that sees which words a text holds; the tiny random one sees next to nothing."""
    words = sorted({word for labels in DOMAINS.values() for own in labels.values() for word in own})
    counts = np.array([[text.split().count(word) for word in words] for text in texts], dtype=np.float32)
    return counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1)


@pytest.mark.parametrize("name", ["fedavg", "ddome"])
def test_rounds_teach_clients_that_never_trained(make, tmp_path, monkeypatch, name):
    monkeypatch.setattr("collegium.flow.common_features.embed_texts", bag_of_words)
    rounds = {"rounds": 40, "clients_per_round": 6}
    algorithm = {"name": name, "local": {"learning_rate": 0.5, "epochs": 2}}
    found = result(federate(make(algorithm=algorithm, rounds=rounds), tmp_path))
    assert found["accuracy"] > 0.7  # of four classes; some texts hold none of the words


@pytest.mark.parametrize("saved", [False, True], ids=["before the checkpoint", "behind it"])
@pytest.mark.parametrize("server_round", [1, 4, 6])
def test_a_killed_run_ends_as_one_that_was_not(make, tmp_path, monkeypatch, server_round, saved):
    undisturbed = federate(make(), tmp_path / "a").read_bytes()
    true = rounds.save_checkpoint

    def dying(path, identity, number, state):
        if number < server_round or saved:
            true(path, identity, number, state)
        if number == server_round:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(rounds, "save_checkpoint", dying)
        federate(make(), tmp_path / "b")
    assert federate(make(), tmp_path / "b").read_bytes() == undisturbed
    lines = (tmp_path / "b" / "metrics.jsonl").read_text()
    assert lines == (tmp_path / "a" / "metrics.jsonl").read_text()


def test_all_examples_together_count_by_their_number(make, tmp_path):
    found = result(federate(make(evaluation={"every": 6, "averaged": 1}), tmp_path))
    clients = gather_clients(make(), tmp_path)
    sizes = [len(clients.rows[client]) for client in clients.judges]
    assert found["global_accuracy"] == pytest.approx(np.average(found["by_client"], weights=sizes))


def test_every_evaluation_says_a_line_where_there_is_no_terminal(make, tmp_path, capsys):
    federate(make(), tmp_path)
    told = [line for line in capsys.readouterr().err.splitlines() if "clients answered, accuracy" in line]
    assert [line.partition(":")[0] for line in told] == ["round 2", "round 4", "round 6"]
    assert "4 of 4 clients answered, accuracy 0." in told[0]
    assert "the most used of 3 experts has" in told[0]


def events(folder):
    """Tag → step → value, as TensorBoard shows them."""
    accumulator = event_accumulator.EventAccumulator(str(folder / "tensorboard"), purge_orphaned_data=True)
    accumulator.Reload()
    return {
        tag: {event.step: event.value for event in accumulator.Scalars(tag)} for tag in accumulator.Tags()["scalars"]
    }


def test_tensorboard_shows_the_metrics_also_of_a_run_that_was_killed(make, tmp_path, monkeypatch):
    federate(make(), tmp_path / "a")
    lines = {line["server_round"]: line for line in RoundMetrics(tmp_path / "a" / METRICS).read()}
    shown = events(tmp_path / "a")
    assert shown["clients/accuracy"] == pytest.approx({n: lines[n]["accuracy"] for n in (2, 4, 6)}, abs=1e-6)
    assert shown["round/bytes up"] == {n: line["bytes_up"] for n, line in lines.items()}
    assert shown["use of experts/2"] == pytest.approx({n: lines[n]["utilisation"][2] for n in (2, 4, 6)}, abs=1e-6)
    true = rounds.save_checkpoint

    def dying(path, identity, number, state):
        if number == 4:
            raise KeyboardInterrupt  # the line of round 4 is written, its checkpoint is not
        true(path, identity, number, state)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(rounds, "save_checkpoint", dying)
        federate(make(), tmp_path / "b")
    federate(make(), tmp_path / "b")
    assert events(tmp_path / "b") == shown


def test_without_tensorboard_nothing_is_missing(make, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    federate(make(), tmp_path)
    assert not (tmp_path / "tensorboard").exists()


def test_runs_share_features_of_the_same_examples(make, tmp_path, monkeypatch):
    federate(make(), tmp_path / "a", shared=tmp_path / "shared")
    monkeypatch.setattr("collegium.flow.common_features.embed_texts", None)
    federate(make(algorithm={"name": "fedavg"}), tmp_path / "b", shared=tmp_path / "shared")
    assert not (tmp_path / "b" / "features").exists()


def test_a_collapse_is_said_when_it_begins_and_when_it_ends(make, tmp_path, monkeypatch, capsys):
    states = iter([None, 1, 1, 1, None, 2])
    monkeypatch.setattr("collegium.federated.algorithms.ddome.Ddome.collapsed_to", lambda _: next(states))
    federate(make(), tmp_path)
    said = [line for line in capsys.readouterr().err.splitlines() if "collapsed" in line or "again" in line]
    assert said == [
        "round 2: nine of ten clients want expert 1; the gate has collapsed",
        "round 5: clients want different experts again",
        "round 6: nine of ten clients want expert 2; the gate has collapsed",
    ]


def test_examples_are_embedded_once(make, tmp_path, monkeypatch):
    federate(make(), tmp_path)
    monkeypatch.setattr("collegium.flow.common_features.embed_texts", None)
    gather_clients(make(random_seed=0), tmp_path)


def test_faults_are_named(make, tmp_path):
    with pytest.raises(RecipeError, match="hold texts"):
        federate(make(inputs="pictures"), tmp_path)
    with pytest.raises(RecipeError, match="need labels"):
        federate(make(columns={"label": None}), tmp_path)
    with pytest.raises(RecipeError, match="algorithm"):
        make(algorithm={"name": "fedsomething"})
    with pytest.raises(InputError, match="too few examples"):
        federate(make(partition={"kind": "iid", "num_clients": 500}), tmp_path)


def test_the_command_prints_the_result(make, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(make().model_dump(mode="json", exclude_none=True)))
    found = CliRunner().invoke(app, ["federate", str(path), "--out", str(tmp_path / "run"), "--set", "rounds.rounds=2"])
    assert found.exit_code == 0, found.output
    assert "clients that never trained" in found.output
    assert "What would leave a client" in found.output
    assert "experts it wants, best first" in found.output.replace("\n", " ")
    assert "use of the experts" in found.output
    assert (tmp_path / "run" / "federation.json").is_file()
