"""Real nodes, but in one process: clients with files of their own, a server without data, and a model at the end."""

import json
import stat
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import yaml

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.cli.build import build_fab_from_disk
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from collegium.core.errors import ArtifactError, InputError, RecipeError, RunError
from collegium.core.load_recipe import load_recipe, parse_settings
from collegium.federated.algorithms.one_model import World
from collegium.federated.deployed_recipe import DeployedRecipe
from collegium.federated.flower.records import to_records
from collegium.federated.make_algorithm import make_algorithm
from collegium.federated.protocol import Message
from collegium.flow import client_examples, deployed
from collegium.flow.federated_model import load_federated
from flower_grid import OneProcessGrid
from tiny import DOMAINS, make_texts

APP = Path(__file__).parents[2] / "examples" / "deployment"
CLASSES = [label for labels in DOMAINS.values() for label in labels]
WORDS = {label: words for labels in DOMAINS.values() for label, words in labels.items()}


@pytest.fixture
def make(tmp_path, seed_folder):
    """Writes a recipe and three clients' files; makes their grid."""

    def make(**changes):
        values = {
            "classes": CLASSES,
            "common_expert": str(seed_folder),
            "max_clients": 4,
            "algorithm": {"name": "scaffold", "network": {"kind": "linear"}, "local": {"learning_rate": 0.5}},
            "rounds": {"rounds": 4, "clients_per_round": 3, "minimum_clients": 3, "deadline": 5},
        }
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(yaml.safe_dump(values | changes))
        nodes = {}
        for number in range(3):
            data = tmp_path / f"{number}.jsonl"
            rows = [(text, label) for label in CLASSES for text in make_texts(WORDS[label], 8, f"{label} {number}")]
            data.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
            config = {
                "recipe": str(recipe),
                "data": str(data),
                "client": number,
                "folder": str(tmp_path / f"p{number}"),
            }
            nodes[100 + number] = (deployed.client, config)
        return OneProcessGrid(nodes), {"recipe": str(recipe), "out": str(tmp_path / "run")}

    return make


def serve(grid, config):
    deployed.server(grid, Context(1, 0, {}, RecordDict(), config))


def test_the_app_names_components_that_are_there():
    assert isinstance(deployed.server, ServerApp)
    assert isinstance(deployed.client, ClientApp)
    assert load_recipe(APP / "recipe.yaml", DeployedRecipe).rounds.minimum_clients == 2


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's use of pathspec
def test_only_the_recipe_is_sent_to_the_nodes_and_no_data_that_lie_beside_it(tmp_path):
    app = tmp_path / "deployment"
    app.mkdir()
    for name in ("pyproject.toml", "recipe.yaml", "README.md", "make_certificates.py"):
        (app / name).write_bytes((APP / name).read_bytes())
    for private in ("data.jsonl", "notes.md", "config.toml", "certificates/server.key"):
        (app / private).parent.mkdir(exist_ok=True)
        (app / private).write_text("private")
    names = zipfile.ZipFile(BytesIO(build_fab_from_disk(app))).namelist()
    assert {name for name in names if not name.startswith(".info")} == {"pyproject.toml", "recipe.yaml"}


def test_rounds_end_with_a_model_that_predicts(make, tmp_path):
    serve(*make(test=str(tmp_path / "0.jsonl"), judge_every=2))
    run = tmp_path / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["answered"] for line in lines] == [3, 3, 3, 3]
    assert ["accuracy" in line for line in lines] == [False, True, False, True]
    assert json.loads((run / "federation.json").read_text())["accuracy"] == lines[-1]["accuracy"]
    model = load_federated(run / "model")
    found = model.predict(["the old cow", "a new hull"])
    assert model.classes == CLASSES
    assert found.shape == (2, 4)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    assert (load_federated(run / "model").predict(["the old cow", "a new hull"]) == found).all()


def test_a_server_without_test_data_knows_no_accuracy(make, tmp_path):
    serve(*make())
    assert json.loads((tmp_path / "run" / "federation.json").read_text())["accuracy"] is None


def test_a_killed_server_ends_as_one_that_was_not(make, tmp_path, monkeypatch):
    grid, config = make()
    secrets = iter(["1" * 32, "2" * 32])
    monkeypatch.setattr(deployed.secrets, "token_hex", lambda _: next(secrets))
    serve(grid, config)
    undisturbed = (tmp_path / "run" / "model" / "arrays.safetensors").read_bytes()
    add, left = deployed.RoundMetrics.add, [3]

    def dying(self, line):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        add(self, line)

    other = {**config, "out": str(tmp_path / "other")}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(deployed.RoundMetrics, "add", dying)
        serve(grid, other)
    serve(grid, other)
    assert (tmp_path / "other" / "model" / "arrays.safetensors").read_bytes() == undisturbed
    states = tmp_path / "p0" / "states"
    assert {path.name for path in states.iterdir()} == {"1" * 32, "2" * 32}  # runs do not use each other's


def test_what_a_client_keeps_is_for_its_owner_alone(make, tmp_path):
    serve(*make())
    assert stat.S_IMODE((tmp_path / "p0").stat().st_mode) == 0o700


def test_examples_are_embedded_once_and_again_when_they_change(make, tmp_path, monkeypatch):
    grid, config = make()
    serve(grid, config)
    monkeypatch.setattr(client_examples, "read_examples", None)
    deployed.member(grid.nodes[100][1], "1" * 32)
    data = tmp_path / "0.jsonl"
    data.write_text(data.read_text() + json.dumps({"text": "one more", "label": CLASSES[0]}) + "\n")
    with pytest.raises(TypeError):
        deployed.member(grid.nodes[100][1], "1" * 32)


def test_nothing_that_a_client_sends_tells_how_many_examples_it_has(make, tmp_path):
    """With three times the examples its replies have the same names and shapes, and nothing else is in them."""
    profiles, results = [], []
    for copies in (1, 3):
        grid, _ = make()
        data = tmp_path / "0.jsonl"
        rows = [json.loads(row) for row in data.read_text().splitlines()]
        more = [{**row, "text": row["text"] + " there" * copy} for row in rows for copy in range(copies)]
        data.write_text("".join(json.dumps(row) + "\n" for row in more))
        profile, result = replies_of(grid)
        profiles.append({name: dict(record) for name, record in profile.items()})
        results.append({name: (array.dtype, array.shape) for name, array in result["arrays"].items()})
        assert set(result) == {"arrays", "scalars", "head"}
        assert dict(result["scalars"]) == {}
        assert dict(result["head"]) == {"server_round": 1, "experiment": ""}
    assert profiles[0] == profiles[1]
    assert results[0] == results[1]


def replies_of(grid):
    """A client's profile, and its result of a task."""
    app, config = grid.nodes[100]
    recipe = load_recipe(config["recipe"], DeployedRecipe)
    found = []
    member = deployed.member(config, "1" * 32)
    world = World(member.features, member.shape, len(CLASSES), recipe.max_clients, recipe.random_seed)
    (task,) = make_algorithm(world, recipe.algorithm).plan(1, [0], {})
    for kind, message in (("query", Message(0, 0)), ("train.task", task)):
        content = to_records(message, "1" * 32)
        asked = FlowerMessage(content, 100, kind)
        asked.metadata.__dict__["_message_id"] = kind
        found.append(app(asked, Context(1, 100, config, RecordDict(), {})).content)
    return found


def test_the_ledger_lies_with_the_client_before_anything_leaves_it_and_with_the_result(make, tmp_path):
    grid, config = make()
    deployed.member(grid.nodes[100][1], "1" * 32)
    own = json.loads((tmp_path / "p0" / "ledger.json").read_bytes())
    serve(grid, config)
    assert own == json.loads((tmp_path / "run" / "federation.json").read_text())["ledger"]
    assert {entry["epsilon"] for entry in own} == {"infinity"}
    assert any(entry["what"].startswith("when a reply arrives") for entry in own)


@pytest.mark.parametrize("name", ["../../elsewhere", "", "1" * 31, "A" * 32, "/" + "1" * 31])
def test_a_servers_name_for_the_run_makes_no_path(make, name, tmp_path):
    grid, _ = make()
    with pytest.raises(InputError, match="name for the run"):
        deployed.member(grid.nodes[100][1], name)
    assert not (tmp_path / "p0").exists()


def test_a_client_with_another_recipe_takes_no_part(make, tmp_path, capsys):
    grid, config = make()
    other = tmp_path / "other.yaml"
    other.write_text(Path(config["recipe"]).read_text().replace("max_clients: 4", "max_clients: 5"))
    grid.nodes[102][1]["recipe"] = str(other)
    with pytest.raises(RunError, match="No client has answered"):
        serve(grid, config)
    said = capsys.readouterr().err
    assert "client 2 has another recipe" in said
    assert "2 clients are there, 3 are needed" in said


def test_own_columns_need_not_be_agreed(make, tmp_path):
    values = {"classes": ["a", "b"], "common_expert": "minilm", "max_clients": 2, "algorithm": {"name": "fedavg"}}
    one = parse_settings(dict(values), DeployedRecipe)
    assert one.agreed == parse_settings({**values, "columns": {"text": "body"}}, DeployedRecipe).agreed
    assert one.agreed != parse_settings({**values, "random_seed": 1}, DeployedRecipe).agreed


@pytest.mark.parametrize("name", ["fedper", "fedamp"])
def test_what_needs_a_clients_own_model_is_refused(make, name):
    grid, config = make(algorithm={"name": name})
    with pytest.raises(RecipeError, match=f"algorithm.name: {name} is for simulation alone"):
        serve(grid, config)


def test_a_schedule_is_refused(make):
    with pytest.raises(RecipeError, match="real nodes come and go by themselves"):
        serve(*make(rounds={"rounds": 2, "schedule": {"fails": 0.3}}))


def test_faults_are_named(make, tmp_path):
    grid, config = make()
    with pytest.raises(RecipeError, match=r"client: .*\n.*folder: this key is required"):
        deployed.member(_without_folder(grid.nodes[100][1]), "1" * 32)
    with pytest.raises(RecipeError, match="out: this key is required"):
        serve(grid, {"recipe": config["recipe"]})
    with pytest.raises(RecipeError, match="a name stands there twice"):
        make_recipe = yaml.safe_load(Path(config["recipe"]).read_text())
        parse_settings({**make_recipe, "classes": ["a", "a"]}, DeployedRecipe)
    data = tmp_path / "0.jsonl"
    data.write_text(json.dumps({"text": "a", "label": "strange"}) + "\n")
    with pytest.raises(InputError, match="labels that the recipe does not name"):
        deployed.member(grid.nodes[100][1], "1" * 32)
    with pytest.raises(ArtifactError, match="no artifact"):
        load_federated(tmp_path / "nothing")


def _without_folder(config):
    return {key: value for key, value in config.items() if key != "folder"} | {"client": -1}
