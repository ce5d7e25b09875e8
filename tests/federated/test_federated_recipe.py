"""Faults of a federation's recipe are named by keys that a user can set."""

import copy

import pytest

from collegium.core.errors import RecipeError
from collegium.core.load_recipe import parse_settings
from collegium.federated.recipe import FederatedRecipe

RECIPE = {
    "data": "texts.jsonl",
    "common_expert": "minilm",
    "partition": {"kind": "iid", "num_clients": 10},
    "algorithm": {"name": "ddome", "num_experts": 5, "local": {"epochs": 2}},
}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.name=fedavg", "algorithm.num_experts: name: fedavg has no such key"),
        ("algorithm={name: fedvg}", "algorithm.name: fedvg is none of fedavg, fedprox, scaffold, ddome"),
        ("algorithm={num_experts: 3}", "algorithm.name: this key is required"),
        ("algorithm.local.epoch=3", "algorithm.local.epoch: unknown key; did you mean epochs?"),
        ("algorithm.experts_per_client=9", "algorithm: experts_per_client: 9 of num_experts: 5"),
        ("algorithm.local.epochs=0", "algorithm.local.epochs: Input should be greater than or equal to 1 (got 0)"),
        ("partition.alpha=0.1", "partition: alpha: 0.1 is for kind dirichlet or quantity-skew, not for iid"),
        ("partition.kind=by-domain", "partition.kind: by-domain shares out domains; name them in domains"),
        ("domains={farm: {data: farm.jsonl}}", "give either data or domains"),
        ("algorithm={name: fedper}", "algorithm.name: fedper needs evaluation.protocol: personal"),
        ("data=null", "give either data or domains"),
        ("rounds.round=3", "rounds.round: unknown key; did you mean rounds?"),
    ],
)
def test_a_fault_is_named_by_the_key_of_the_recipe(override, message):
    with pytest.raises(RecipeError) as found:
        parse_settings(copy.deepcopy(RECIPE), FederatedRecipe, [override])
    assert f"\n    {message}" in str(found.value)
