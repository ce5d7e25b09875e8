"""What is in a contribution: nothing from which the number of private examples follows, no hash of private data."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from safetensors import safe_open

from collegium.core.artifacts import MANIFEST, read_artifact
from collegium.core.recipe import OwnerRecipe
from collegium.models.ffn_inputs import norm_bound
from collegium.owner.contribute import contribute
from collegium.owner.contribution import CARD, EXPERT, LEDGER, PROXIES, ROUTING, safetensors_bytes
from collegium.owner.private_data import load_private
from collegium.owner.validate import expected_expert
from collegium.privacy.ledger import contribution_ledger, ledger_json, routing_release
from collegium.privacy.release_store import ReleaseStore
from collegium.privacy.sensitivity import routing_sensitivity
from collegium.selection.pool import is_held_out
from tiny import NO_OVERLAP_CHECK, write_rows

# peft asks transformers for an attribute that has a new name; neither is ours.

FILES = {EXPERT, ROUTING, PROXIES, LEDGER, CARD}
SIZES = (20, 60)  # rows for each class


@pytest.fixture(scope="module")
def random_charter(make_charter):
    """Proxies by chance, so that both data sets get the same ones and any other difference comes from N."""
    return make_charter(selection={"method": "random", "size": 20})


@pytest.fixture(scope="module")
def made(tmp_path_factory, random_charter, pool, seed) -> dict[int, Path]:
    """Contributions of one owner from data sets of two sizes."""
    folder, paths = tmp_path_factory.mktemp("sizes"), {}
    for rows in SIZES:
        data = write_rows(folder / str(rows) / "farm.jsonl", "farm", rows)
        recipe = OwnerRecipe(name="farm", data=str(data), privacy=NO_OVERLAP_CHECK)
        paths[rows] = folder / f"contribution {rows}"
        contribute(random_charter, recipe, pool, seed, paths[rows], ReleaseStore(folder / f"store {rows}"))
    return paths


@pytest.fixture(scope="module")
def private(random_charter, made) -> dict[int, list[str]]:
    return {
        rows: load_private(
            random_charter, OwnerRecipe(name="farm", data=str(path.parent / str(rows) / "farm.jsonl"))
        ).texts
        for rows, path in made.items()
    }


def headers(path: Path) -> dict[str, bytes]:
    found = {}
    for name in (EXPERT, ROUTING):
        content = (path / name).read_bytes()
        found[name] = content[: 8 + int.from_bytes(content[:8], "little")]
    return found


def test_a_contribution_holds_the_declared_files_alone(made):
    for path in made.values():
        assert {str(file.relative_to(path)) for file in path.rglob("*")} == FILES | {MANIFEST}


def test_whatever_the_number_of_examples_all_but_the_weights_is_identical(made, private):
    small, large = made.values()
    assert len(private[20]) * 3 == len(private[60])
    for name in (PROXIES, LEDGER, CARD):
        assert (small / name).read_bytes() == (large / name).read_bytes()
    assert headers(small) == headers(large)  # names, shapes, dtypes, order, metadata
    for name in FILES | {MANIFEST}:
        assert (small / name).stat().st_size == (large / name).stat().st_size
        assert (small / name).stat().st_mode == (large / name).stat().st_mode
    manifests = [json.loads((path / MANIFEST).read_bytes()) for path in (small, large)]
    for manifest in manifests:
        for name in (EXPERT, ROUTING):
            del manifest["files"][name]["sha256"]
    assert manifests[0] == manifests[1]
    assert (small / EXPERT).read_bytes() != (large / EXPERT).read_bytes()


def test_no_time_in_it_is_of_the_training(made):
    for path in made.values():
        times = {(file.stat().st_mtime, file.stat().st_atime) for file in [path, *path.rglob("*")]}
        assert {modified for modified, _ in times} == {315_532_800}


def test_the_weights_carry_no_metadata(made):
    for path in made.values():
        for name in (EXPERT, ROUTING):
            with safe_open(path / name, framework="pt") as file:
                assert file.metadata() is None


def test_the_ledger_follows_from_the_charter_and_the_proxies_alone(made, contributions, charter, pool, seed):
    """Anybody who holds the charter and the proxies can write it, so it tells nothing else."""
    for path in [*made.values(), *contributions.values()]:
        hashes = json.loads((path / PROXIES).read_bytes())
        count = sum(not is_held_out(value, charter.terms.held_out_one_in) for value in hashes)
        bounds = [norm_bound(seed, seed.architecture, 1)]
        routing = routing_release("seed", routing_sensitivity(bounds, count), count, bounds)
        assert (path / LEDGER).read_bytes() == ledger_json(contribution_ledger(routing, True, "both", False, False))


def test_neither_private_texts_nor_their_hashes_nor_their_number_are_in_it(made, private):
    for rows, path in made.items():
        content = b"".join(file.read_bytes() for file in path.iterdir())
        for text in private[rows]:
            assert text.encode() not in content
            for algorithm in ("sha256", "sha1", "md5", "blake2b"):
                digest = hashlib.new(algorithm, text.encode())
                assert digest.hexdigest()[:16].encode() not in content
                assert digest.digest()[:8] not in content
        everything = b"".join((path / name).read_bytes() for name in (LEDGER, CARD, MANIFEST))
        assert f" {len(private[rows])} ".encode() not in everything


def test_the_store_does_remember_the_private_hashes_so_the_search_above_would_find_them(made, private):
    for rows, path in made.items():
        store = b"".join(file.read_bytes() for file in (path.parent / f"store {rows}").rglob("*") if file.is_file())
        assert hashlib.sha256(private[rows][0].encode()).hexdigest().encode() in store


def test_proxies_are_sorted_so_that_their_order_tells_no_ranks(made, contributions, pool):
    for path in [*made.values(), *contributions.values()]:
        hashes = json.loads((path / PROXIES).read_bytes())
        assert hashes == sorted(set(hashes))
        assert set(hashes) <= set(pool.hashes)
        assert len(hashes) == 20


def test_the_card_says_all_that_the_ledger_says(made):
    for path in made.values():
        card = (path / CARD).read_text(encoding="utf-8")
        for entry in json.loads((path / LEDGER).read_bytes()):
            for key in ("what", "from_data", "sensitivity", "epsilon", "reveals"):
                assert entry[key] in card


@pytest.mark.parametrize(
    "changes", [{}, {"training": {"parameters": "lora", "rank": 3}}, {"router": {"decide": "every-layer"}}]
)
def test_the_size_of_every_file_is_known_beforehand(tmp_path, make_charter, pool, seed, changes):
    charter = make_charter(**changes)
    data = write_rows(tmp_path / "farm.jsonl", "farm", 12)
    recipe = OwnerRecipe(name="farm", data=str(data), privacy=NO_OVERLAP_CHECK)
    contribute(charter, recipe, pool, seed, tmp_path / "out", ReleaseStore(tmp_path / "store"))
    files = read_artifact(tmp_path / "out").files
    assert files[EXPERT]["bytes"] == safetensors_bytes(expected_expert(charter, seed))
    vectors = {f"layers.{layer}": (seed.dim,) for layer in charter.routed_layers(3)}
    assert files[ROUTING]["bytes"] == safetensors_bytes(vectors)


def test_case_24_the_same_data_give_the_same_contribution_in_another_folder_at_another_time(
    tmp_path, random_charter, pool, seed, made
):
    source = made[20].parent / "20" / "farm.jsonl"
    data = tmp_path / "elsewhere.jsonl"
    data.write_bytes(source.read_bytes())
    os.utime(data, (0, 0))
    recipe = OwnerRecipe(name="farm", data=str(data), privacy=NO_OVERLAP_CHECK)
    artifact = contribute(random_charter, recipe, pool, seed, tmp_path / "out", ReleaseStore(tmp_path / "store"))
    assert artifact.sha256 == read_artifact(made[20]).sha256
