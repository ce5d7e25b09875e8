"""The ledger: no mechanism means ε = infinity, said so, and nothing in it depends on the number of private examples."""

import inspect
import json

import pytest

from collegium.privacy import ledger
from collegium.privacy.ledger import contribution_ledger, ledger_json, routing_release
from collegium.privacy.sensitivity import routing_sensitivity

VECTORS = ["seed", "private", "tuned"]


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("alignment", ["both", "private", "proxy"])
def test_no_mechanism_is_infinity_and_never_silence(vectors, alignment):
    entries = contribution_ledger(routing_release(vectors, 0.5, 20, [5.0]), True, alignment, True, False)
    for entry in json.loads(ledger_json(entries)):
        assert entry["mechanism"] == "none"
        assert entry["epsilon"] == "infinity"
        assert all(isinstance(value, str) for value in entry.values())
        assert entry["what"]
        assert entry["reveals"]
        assert entry["unit"] == "one private example (replace-one)"


def test_everything_that_leaves_has_a_line():
    routing = routing_release("seed", 0.5, 20, [5.0])
    files = [entry.file for entry in contribution_ledger(routing, True, "both", True, False)]
    assert files == ["proxies.json", "expert.safetensors", "routing.safetensors", ""]
    assert [entry.file for entry in contribution_ledger(routing, False, "both", True, False)] == files[:3]


def test_only_the_seeds_pass_claims_a_bound():
    sensitivity = routing_sensitivity([3.0, 4.0], 20)
    assert "2B/m = 0.5 (B = 5, m = 20)" in routing_release("seed", sensitivity, 20, [3.0, 4.0]).sensitivity
    assert "no bound is known" in routing_release("tuned", sensitivity, 20, [3.0, 4.0]).sensitivity
    private = routing_release("private", routing_sensitivity([3.0, 4.0], 0), 20, [3.0, 4.0])
    assert "at most 10;" in private.sensitivity
    assert "private examples alone" in private.from_data


def test_what_an_expert_was_trained_on_is_said():
    routing = routing_release("seed", 0.5, 20, [5.0])
    made_of = [
        contribution_ledger(routing, True, alignment, True, False)[1].from_data
        for alignment in ("both", "private", "proxy")
    ]
    assert made_of[0] == "private examples and public proxies"
    assert made_of[1] == "private examples"
    assert "chosen with the private examples" in made_of[2]


def test_no_function_of_the_ledger_is_told_the_number_of_private_examples():
    for function in (ledger.routing_release, ledger.contribution_ledger, ledger.head_release, ledger.ledger_json):
        assert set(inspect.signature(function).parameters) <= {
            "vectors",
            "sensitivity",
            "num_proxies",
            "norm_bounds",
            "routing",
            "labels_published",
            "alignment",
            "fixed_steps",
            "overlap_allowed",
            "head",
            "items",
            "entries",
        }


def test_weights_tell_the_number_of_examples_roughly_or_with_fixed_steps_weakly():
    routing = ledger.routing_release("seed", 0.5, 20, [5.0])
    number = "how many private examples"
    assert f"roughly {number}" in contribution_ledger(routing, True, "both", False, False)[1].reveals
    assert f"weakly {number}" in contribution_ledger(routing, True, "both", True, False)[1].reveals
    assert f"weakly {number}" in contribution_ledger(routing, True, "private", True, False)[1].reveals
    assert number not in contribution_ledger(routing, True, "proxy", False, False)[1].reveals


def test_an_allowed_overlap_stands_in_the_ledger():
    routing = ledger.routing_release("seed", 0.5, 20, [5.0])
    assert "among the private ones" in contribution_ledger(routing, True, "both", True, True)[0].reveals
    assert "among the private ones" not in contribution_ledger(routing, True, "both", True, False)[0].reveals


def test_the_rows_of_a_head_have_a_line_and_pictures_are_called_pictures():
    routing = routing_release("seed", 0.5, 20, [5.0])
    entries = contribution_ledger(routing, True, "both", True, False, head=True, items="picture")
    assert [entry.file for entry in entries] == [
        "proxies.json",
        "expert.safetensors",
        "head.safetensors",
        "routing.safetensors",
        "",
    ]
    assert "public pictures" in entries[0].reveals
    assert not any("text" in entry.reveals for entry in entries)
