"""Federated rounds on real nodes: the two components that a Flower app names.

    serverapp = "collegium.flow.deployed:server"      on the SuperLink
    clientapp = "collegium.flow.deployed:client"      on every SuperNode

The server has no data: classes are in the recipe, lengths and shapes come from the clients. Of a client's data only
trained arrays and answers of the algorithm leave it: no number of examples, no loss, no time, no error's text. See
examples/deployment and docs/federated.md.
"""

import json
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collegium.core.artifacts import write_file
from collegium.core.errors import InputError
from collegium.core.load_recipe import load_recipe, parse_settings
from collegium.core.progress import say
from collegium.federated.algorithms.one_model import World
from collegium.federated.client_side import ClientSide
from collegium.federated.client_state import ClientStates
from collegium.federated.deployed_recipe import DeployedRecipe, NodeSettings, ServerSettings
from collegium.federated.flower.client_app import Member, make_client_app
from collegium.federated.flower.grid_engine import GridEngine, Terms
from collegium.federated.flower.server_app import make_server_app
from collegium.federated.make_algorithm import make_algorithm
from collegium.federated.rounds import RoundReport, run_rounds
from collegium.flow.client_examples import client_examples, read_examples
from collegium.flow.collapse import CollapseAlarm
from collegium.flow.round_metrics import RoundMetrics
from collegium.privacy.federated_ledger import federated_ledger
from collegium.privacy.ledger import ledger_json

EXPERIMENT, METRICS, MODEL, RESULT = "experiment", "metrics.jsonl", "model", "federation.json"
LEDGER = "ledger.json"  # in the client's folder, before anything leaves it
EXPERIMENT_NAME = re.compile(r"[0-9a-f]{32}")


def serve(grid: Any, config: Mapping[str, object]) -> None:
    """Run what is left of the rounds, then write `model`, which `load_federated` reads.

    Raises:
        RecipeError: the run's configuration or the recipe is wrong.
        RunError: nobody answered.
    """
    from collegium.flow.federated_model import ModelSettings, write_model
    from collegium.flow.judging import judge

    settings = parse_settings(dict(config), ServerSettings, source="the run's configuration")
    recipe, folder = load_recipe(settings.recipe, DeployedRecipe), Path(settings.out)
    folder.mkdir(parents=True, exist_ok=True)
    rounds = recipe.rounds
    terms = Terms(recipe.max_clients, recipe.agreed)
    engine = GridEngine(grid, terms, rounds.minimum_clients, rounds.deadline, _experiment(folder))
    say(f"waiting for {rounds.minimum_clients} clients")
    engine.clients()
    agreed = engine.agree()
    assert agreed.features is not None
    assert agreed.shape is not None
    model = ModelSettings(
        **recipe.model_dump(include={"project", "classes", "common_expert", "inputs", "algorithm", "random_seed"}),
        features=agreed.features,
        shape=list(agreed.shape),
        num_clients=recipe.max_clients,
    )
    algorithm = make_algorithm(model.world(), recipe.algorithm)
    test = None if recipe.test is None else read_examples(recipe, recipe.test)
    metrics, collapse = RoundMetrics(folder / METRICS), CollapseAlarm(algorithm)

    def after(report: RoundReport) -> None:
        due = report.server_round == rounds.rounds or report.server_round % recipe.judge_every == 0
        found = judge(algorithm, [(test, {})]) if test is not None and due else {}
        collapse.look(report.server_round, found.get("utilisation"))
        metrics.add({**vars(report), **found})
        say(f"round {report.server_round} of {rounds.rounds}: {report.answered} of {report.asked} clients answered")

    identity = [recipe.model_dump(mode="json"), list(agreed.shape), agreed.features]
    run_rounds(algorithm, engine, rounds, identity, recipe.random_seed, folder, after)
    write_model(folder / MODEL, model, algorithm)
    lines = metrics.read()
    result = {
        "project": recipe.project,
        "algorithm": recipe.algorithm.name,
        "rounds": rounds.rounds,
        "accuracy": next((line["accuracy"] for line in reversed(lines) if "accuracy" in line), None),
        "bytes_down": sum(line["bytes_down"] for line in lines),
        "bytes_up": sum(line["bytes_up"] for line in lines),
        "ledger": [entry.model_dump(mode="json") for entry in federated_ledger(algorithm.releases())],
        "settings": recipe.model_dump(mode="json"),
    }
    write_file(folder / RESULT, json.dumps(result, indent=1).encode())
    say(f"the model is in {folder / MODEL}")


def member(node: Mapping[str, object], experiment: str) -> Member:
    """The client of this node, with its examples.

    Args:
        experiment: name of the run, which the server made up; the client's states of other runs are not used.

    Raises:
        InputError: the node's configuration, the recipe or the data are wrong, or the name is none.
    """
    if not EXPERIMENT_NAME.fullmatch(experiment):  # it becomes the name of a folder
        raise InputError(
            "The server's name for the run is none.", got=experiment[:80], expected="32 hexadecimal digits"
        )
    settings = parse_settings(dict(node), NodeSettings, source="the SuperNode's configuration")
    recipe, folder = load_recipe(settings.recipe, DeployedRecipe), Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    data = client_examples(recipe, settings.data, folder / "examples")
    shape = data.inputs.shape[1:]
    world = World(data.features.shape[1], shape, len(recipe.classes), recipe.max_clients, recipe.random_seed)
    states = ClientStates(folder / "states" / experiment)
    algorithm = make_algorithm(world, recipe.algorithm)
    write_file(folder / LEDGER, ledger_json(federated_ledger(algorithm.releases())))
    side = ClientSide(algorithm, lambda _: data, states)
    return Member(settings.client, world.features, shape, recipe.agreed, side.answer)


def _experiment(folder: Path) -> str:
    """A name for this run and all that go on from it, made once: clients keep their states under it."""
    path = folder / EXPERIMENT
    if not path.is_file():
        write_file(path, secrets.token_hex(16).encode())
    return path.read_text()


server = make_server_app(serve)
client = make_client_app(member, explain=False)
