"""A suite of federations of made-up clients: cases, the choice of a learning rate, its tables, resuming."""

import csv
import json

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from cells_here import check_that_records_stand_for_folders, in_process
from collegium.benchmarks import cells as module
from collegium.benchmarks.federation import effective_number, worst_tenth
from collegium.benchmarks.run_suite import run_suite, tabulate
from collegium.benchmarks.suite import cell_recipe, load_suite
from collegium.benchmarks.tables import markdown
from collegium.cli.main import app
from collegium.core.errors import RecipeError
from tiny import write_all_domains

RATE = "algorithm.local.learning_rate"
SUITE = {
    "name": "tiny",
    "recipe": "recipe.yaml",
    "seeds": [0, 1],
    "reference": "fedavg",
    "cases": {
        "two-classes": {"note": "two classes a client"},
        "iid": {"set": {"partition": {"kind": "iid", "num_clients": 12}}},
    },
    "tune": {RATE: [0.001, 0.5]},
    "variants": {
        "fedavg": {},
        "ddome": {"set": {"algorithm.name": "ddome", "algorithm.num_experts": 3}, "note": "a gate and experts"},
        "slow": {"set": {RATE: 0.1}, "cases": ["iid"], "seeds": [1]},
    },
}


@pytest.fixture(scope="module")
def suite_path(seed_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("federated-suite")
    recipe = {
        "data": str(write_all_domains(folder / "texts.jsonl", 60)),
        "common_expert": str(seed_folder),
        "partition": {"kind": "pathological", "num_clients": 12, "classes_per_client": 2},
        "held_out_clients": 0.25,
        "algorithm": {"name": "fedavg"},
        "rounds": {"rounds": 4, "clients_per_round": 4},
        "evaluation": {"every": 2, "averaged": 2},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (folder / "suite.yaml").write_text(yaml.safe_dump(SUITE, sort_keys=False))
    return folder / "suite.yaml"


@pytest.fixture(scope="module")
def finished(suite_path, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    started = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_start", lambda cell, threads: started.append(cell.name) or in_process(cell, threads))
        run_suite(*load_suite(str(suite_path)), out)
        results = tabulate(*load_suite(str(suite_path)), out)
    return out, results, started


def result(out, case, seed, variant):
    return json.loads((out / case / f"seed-{seed}" / variant / "federation.json").read_bytes())


def test_every_variant_has_a_row_in_every_case(finished):
    out, results, _ = finished
    rows = {(row.case, row.method): row for row in results.rows}
    both = [(case, method) for case in ("two-classes", "iid") for method in ("fedavg", "ddome")]
    assert set(rows) == {*both, ("iid", "slow")}
    assert rows["iid", "ddome"].seeds == [0, 1]
    assert rows["iid", "slow"].seeds == [1]
    assert not results.failures
    assert not results.missing
    for case, method in both:
        found = [result(out, case, seed, method) for seed in (0, 1)]
        mean, std = rows[case, method].values["accuracy"]
        assert mean == pytest.approx(100 * np.mean([one["accuracy"] for one in found]))
        assert std == pytest.approx(100 * np.std([one["accuracy"] for one in found], ddof=1))


def test_what_a_row_holds_follows_from_its_definition(finished):
    out, results, _ = finished
    row = next(row for row in results.rows if row.case == "iid" and row.method == "ddome")
    found = [result(out, "iid", seed, "ddome") for seed in (0, 1)]
    worst = np.mean([min(one["by_client"]) for one in found])  # a tenth of three clients is one
    assert row.values["worst_tenth"][0] == pytest.approx(100 * worst)
    assert row.values["most_used"][0] == pytest.approx(100 * np.mean([max(one["utilisation"]) for one in found]))
    assert row.values["bytes_up"][0] == pytest.approx(np.mean([one["bytes_up"] for one in found]) / 1e6)
    assert row.values["rounds"][0] == 4
    plain = next(row for row in results.rows if row.case == "iid" and row.method == "fedavg")
    assert "most_used" not in plain.values


def test_the_judging_clients_are_the_units_of_a_difference(finished):
    out, results, _ = finished
    for row in results.rows:
        if row.method == "fedavg":
            assert row.difference is None
            assert row.also == {"with_prior": None}
            continue
        points = [
            np.mean(result(out, row.case, seed, row.method)["by_client"])
            - np.mean(result(out, row.case, seed, "fedavg")["by_client"])
            for seed in row.seeds
        ]
        assert row.difference.mean == pytest.approx(np.mean(points), abs=1e-5)
        batch = [
            np.mean(result(out, row.case, seed, row.method)["by_client_with_prior"])
            - np.mean(result(out, row.case, seed, "fedavg")["by_client_with_prior"])
            for seed in row.seeds
        ]
        assert row.also["with_prior"].mean == pytest.approx(np.mean(batch), abs=1e-5)
        assert row.difference.low <= row.difference.mean <= row.difference.high


def test_a_learning_rate_is_chosen_on_validation_clients_with_the_first_seed(finished):
    out, results, started = finished
    for case in ("two-classes", "iid"):
        for variant in ("fedavg", "ddome"):
            scores = {}
            for rate in (0.001, 0.5):
                folder = out / case / "choices" / "seed-0" / f"{variant}@{RATE}={rate}"
                found = json.loads((folder / "federation.json").read_bytes())
                assert found["settings"]["evaluation"]["clients"] == "validation"
                assert found["settings"]["algorithm"]["local"]["learning_rate"] == rate
                scores[rate] = found["accuracy"]
            chosen = max(scores, key=scores.get)
            for seed in (0, 1):
                settings = result(out, case, seed, variant)["settings"]
                assert settings["algorithm"]["local"]["learning_rate"] == chosen
                assert settings["evaluation"]["clients"] == "test"
            row = next(row for row in results.rows if (row.case, row.method) == (case, variant))
            assert row.chosen == {RATE: chosen}
    assert sum("@" in name for name in started) == 8  # as many for each; `slow` has its own
    assert result(out, "iid", 1, "slow")["settings"]["algorithm"]["local"]["learning_rate"] == 0.1


def test_features_are_computed_once_for_all_cells(finished):
    out, _, _ = finished
    assert len(list((out / "work" / "features").glob("*/features.npy"))) == 1
    assert not list(out.glob("*/seed-*/*/features"))


def test_the_tables_say_the_same(finished):
    out, results, _ = finished
    text = (out / "table.md").read_text()
    assert "**two-classes**: two classes a client\n\n| clients, % |" in text
    assert "**iid**\n\n| clients, % |" in text
    assert text.count("* `ddome`: a gate and experts") == 1
    assert "best on validation data, with seed 0" in text
    row = next(row for row in results.rows if (row.case, row.method) == ("iid", "ddome"))
    mean, std = row.values["accuracy"]
    [line] = [line for line in text.partition("**iid**")[2].splitlines() if line.startswith("| ddome |")]
    assert f"| {mean:.1f} ± {std:.1f} |" in line
    assert "| − fedavg | − fedavg, with its batch | learning_rate |" in text
    assert f"| {row.chosen[RATE]} | 2 |" in line
    with (out / "table.csv").open() as file:
        [found] = [found for found in csv.DictReader(file) if (found["case"], found["method"]) == ("iid", "ddome")]
    assert float(found["accuracy"]) == pytest.approx(mean, abs=1e-3)
    assert found[RATE] == str(row.chosen[RATE])
    assert (out / "table.tex").read_text().count("tabular}{") == 2
    records = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert len([record for record in records if "@" not in record["method"]]) == 9
    assert len(records) == 9 + 8  # candidates too
    assert {record["case"]["case"] for record in records} == {"two-classes", "iid"}


def test_every_case_has_its_figures(finished):
    out, _, _ = finished
    names = {path.name for path in (out / "figures").iterdir()}
    assert names == {
        f"{what}-{case}.{suffix}"
        for what in ("accuracy", "experts")
        for case in ("iid", "two-classes")
        for suffix in ("png", "svg")
    }
    told = (out / "figures" / "accuracy-iid.svg").read_text()
    assert all(name in told for name in ("fedavg", "ddome", "slow"))
    assert "fedavg" not in (out / "figures" / "experts-iid.svg").read_text()


def test_a_finished_suite_runs_nothing_again(finished, suite_path, monkeypatch):
    out, results, _ = finished
    monkeypatch.setattr(module, "_start", None)
    run_suite(*load_suite(str(suite_path)), out)
    assert tabulate(*load_suite(str(suite_path)), out) == results


def test_the_records_alone_make_the_same_tables_and_nothing_is_run(finished, suite_path, tmp_path, monkeypatch):
    out, results, _ = finished
    check_that_records_stand_for_folders(out, results, suite_path, tmp_path, monkeypatch)


def test_other_settings_begin_anew_and_a_killed_cell_goes_on(suite_path, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_start", in_process)
    suite, path = load_suite(str(suite_path))
    part = suite.part([1], ["slow"], ["iid"])
    run_suite(part, path, tmp_path)
    first = result(tmp_path, "iid", 1, "slow")
    (tmp_path / "iid" / "seed-1" / "slow" / "federation.json").unlink()  # as if killed before its last line
    run_suite(part, path, tmp_path)
    assert result(tmp_path, "iid", 1, "slow") == first
    run_suite(part, path, tmp_path, ["rounds.rounds=2"])
    assert result(tmp_path, "iid", 1, "slow")["averaged_rounds"] == [2]
    assert tabulate(suite, path, tmp_path).rows == []  # what is there has other settings


def test_what_is_not_yet_chosen_is_not_run(suite_path, tmp_path, monkeypatch):
    suite, path = load_suite(str(suite_path))
    started = []

    def failing(cell, threads):
        started.append(cell.name)
        cell.failure.write_text("no such thing\n")
        return in_process(cell, threads)

    monkeypatch.setattr(module.Cell, "run", lambda cell: None)
    monkeypatch.setattr(module, "_start", failing)
    run_suite(suite.part(None, ["ddome"], ["iid"]), path, tmp_path)
    assert started == [f"iid, seed 0, ddome@{RATE}={rate}" for rate in (0.001, 0.5)]
    results = tabulate(suite.part(None, ["ddome"], ["iid"]), path, tmp_path)
    assert list(results.failures) == started
    assert results.missing == ["iid, seed 0, ddome", "iid, seed 1, ddome"]
    assert "Not run: iid, seed 0, ddome" in markdown(results)


def test_the_command_runs_one_case(finished, suite_path):
    out, _, _ = finished
    command = ["bench", str(suite_path), "--out", str(out), "--case", "iid", "--seed", "1"]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    assert "| ddome |" in found.output


def test_recipes_of_two_kinds_and_keys_of_the_other_are_refused(suite_path, make_recipe, tmp_path):
    (tmp_path / "recipe.yaml").write_text((suite_path.parent / "recipe.yaml").read_text())
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(make_recipe().model_dump(mode="json")))
    mixed = {**SUITE, "tune": {}, "cases": None, "variants": {"fedavg": {}, "ours": {"recipe": "other.yaml"}}}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(mixed))
    with pytest.raises(RecipeError, match="no common table"):
        tabulate(*load_suite(str(tmp_path / "suite.yaml")), tmp_path)
    mixed["variants"] = {"fedavg": {"owners": ["farm"]}}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(mixed))
    suite, path = load_suite(str(tmp_path / "suite.yaml"))
    with pytest.raises(RecipeError, match="not of federated recipes"):
        cell_recipe(suite, path, "fedavg", 0)


def test_the_number_of_experts_in_use():
    assert effective_number([0.25] * 4) == pytest.approx(4)
    assert effective_number([1.0, 0.0]) == pytest.approx(1)
    assert effective_number([0.5, 0.5, 0.0]) == pytest.approx(2)


def test_the_worst_tenth_is_one_client_at_least():
    assert worst_tenth([0.9, 0.1, 0.5]) == pytest.approx(0.1)
    assert worst_tenth([k / 20 for k in range(20)]) == pytest.approx((0 + 0.05) / 2)
