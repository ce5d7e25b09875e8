"""The example of a deployment, as its README says: a SuperLink and three SuperNodes with TLS and registered keys."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

pytest.importorskip("flwr", reason="the extra `federated` is not installed")

from collegium.core.load_recipe import load_recipe
from collegium.federated.algorithms.one_model import World
from collegium.federated.client_state import ClientStates
from collegium.federated.deployed_recipe import DeployedRecipe
from collegium.federated.in_process import InProcess
from collegium.federated.make_algorithm import make_algorithm
from collegium.federated.rounds import run_rounds
from collegium.flow.client_examples import client_examples
from collegium.flow.federated_model import load_federated
from tiny import DOMAINS, make_texts

pytestmark = pytest.mark.slow
APP = Path(__file__).parents[1] / "examples" / "deployment"
PATIENCE = 300  # seconds for anything
WORDS = {label: words for labels in DOMAINS.values() for label, words in labels.items()}


class Deployment:
    """Everything that was started has a mark in its environment, by which it is found and ended."""

    def __init__(self, folder, seed_folder, rounds):
        self.folder, self.mark, self.ports = folder, uuid.uuid4().hex, [free_port() for _ in range(4)]
        self.started = []
        self.recipe, self.out = folder / "recipe.yaml", folder / "run"
        values = {
            "classes": list(WORDS),
            "common_expert": str(seed_folder),
            "max_clients": 3,
            "algorithm": {"name": "scaffold", "network": {"kind": "linear"}, "local": {"learning_rate": 0.5}},
            "rounds": {"clients_per_round": 3, **rounds},
        }
        self.recipe.write_text(yaml.safe_dump(values))
        for number in range(3):
            rows = [(text, label) for label in WORDS for text in make_texts(WORDS[label], 8, f"{label} {number}")]
            lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in rows]
            self.data(number).write_text("".join(lines))

    def data(self, number):
        return self.folder / f"{number}.jsonl"

    def environment(self, home):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "FLWR_HOME": str(self.folder / home), "CERTIFICATES": str(self.folder / "certificates")}
        return {**os.environ, **own, "RECIPE": str(self.recipe), "COLLEGIUM_TEST": self.mark, "HF_HUB_OFFLINE": "1"}

    def start(self, name, *words):
        """A process that stays, with its log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.started.append(subprocess.Popen(words, cwd=APP, env=self.environment(name), stdout=log, stderr=log))

    def do(self, *words):
        done = subprocess.run(words, cwd=APP, env=self.environment("home"), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def begin(self):
        certificates = ["--folder", str(self.folder / "certificates")]
        self.do(sys.executable, "make_certificates.py", *certificates, "server", "127.0.0.1")
        self.start("superlink", "sh", "start_superlink.sh", "127.0.0.1", str(self.ports[3]))
        wait_for(lambda: is_open(self.ports[3]), self)
        (self.folder / "home").mkdir()
        (self.folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "rounds"\n[superlink.rounds]\naddress = "127.0.0.1:{self.ports[3]}"\n'
            f'root-certificates = "{self.folder / "certificates" / "ca.crt"}"\n'
        )
        for number in range(3):
            self.do(sys.executable, "make_certificates.py", *certificates, "node", f"client-{number}")
            self.do("flwr", "supernode", "register", str(self.folder / "certificates" / f"client-{number}.pub"))
            self.start_node(number)

    def start_node(self, number):
        arguments = [f"127.0.0.1:{self.ports[3]}", str(number), str(self.data(number)), str(self.folder / f"p{number}")]
        self.start(f"node-{number}", "sh", "start_supernode.sh", *arguments, str(self.ports[number]))

    def run(self):
        self.do("flwr", "run", str(APP), "--run-config", f'recipe="{self.recipe}" out="{self.out}"')

    def lines(self):
        path = self.out / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def kill(self, *words):
        """SIGKILL to every own process whose command line has the words; their number."""
        found = 0
        for process in Path("/proc").glob("[0-9]*"):
            try:
                marked = f"COLLEGIUM_TEST={self.mark}".encode() in (process / "environ").read_bytes()
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if marked and all(word in line for word in words):
                    os.kill(int(process.name), signal.SIGKILL)
                    found += 1
            except (OSError, ProcessLookupError):
                continue
        return found

    def logs(self):
        return "\n".join(f"== {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.folder.glob("*.log")))


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def is_open(port):
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def wait_for(condition, deployment):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, deployment.logs()
        time.sleep(0.2)


@pytest.fixture
def deploy(tmp_path, seed_folder):
    started = []

    def make(**rounds):
        started.append(Deployment(tmp_path, seed_folder, rounds))
        started[-1].begin()
        return started[-1]

    yield make
    for deployment in started:
        while deployment.kill():
            time.sleep(0.2)
        for process in deployment.started:
            process.wait()


def test_a_client_that_is_taken_away_stops_nobody(deploy):
    deployment = deploy(rounds=5, minimum_clients=2, deadline=40)
    deployment.run()
    wait_for(lambda: any(line["answered"] == 3 for line in deployment.lines()), deployment)
    before = len(deployment.lines())
    assert deployment.kill("flower-supernode", f"--port {deployment.ports[2]}") == 1
    wait_for((deployment.out / "federation.json").is_file, deployment)
    lines = deployment.lines()
    assert [line["server_round"] for line in lines] == [1, 2, 3, 4, 5]
    assert all(line["answered"] >= 2 and line["aggregated"] for line in lines)
    assert lines[-1]["answered"] == 2
    assert before < 5
    found = load_federated(deployment.out / "model").predict(["the old cow"])
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)


def test_a_server_that_is_killed_goes_on_to_the_same_model(deploy):
    deployment = deploy(rounds=4, minimum_clients=3, deadline=120)
    deployment.run()
    wait_for(lambda: len(deployment.lines()) >= 2, deployment)
    assert deployment.kill("flwr-serverapp") >= 1
    assert not (deployment.out / "federation.json").exists()
    deployment.run()
    wait_for((deployment.out / "federation.json").is_file, deployment)
    assert [line["answered"] for line in deployment.lines()] == [3, 3, 3, 3]
    arrays = load_file(deployment.out / "model" / "arrays.safetensors")
    expected = in_one_process(deployment)
    assert arrays.keys() == expected.keys()
    assert all((arrays[name] == expected[name]).all() for name in arrays)


def in_one_process(deployment):
    """The final arrays of the same rounds without a network."""
    recipe = load_recipe(deployment.recipe, DeployedRecipe)
    folder = deployment.folder / "reference"
    data = [client_examples(recipe, str(deployment.data(number)), folder / f"{number}") for number in range(3)]
    dim = data[0].features.shape[1]
    world = World(dim, (dim,), len(recipe.classes), recipe.max_clients, recipe.random_seed)
    server, side = (make_algorithm(world, recipe.algorithm) for _ in range(2))
    engine = InProcess(side, data.__getitem__, lambda: range(3), ClientStates(folder / "states"))
    run_rounds(server, engine, recipe.rounds, "reference", recipe.random_seed, folder / "run")
    return server.state_dict()["arrays"]
