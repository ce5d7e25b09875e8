"""A whole suite on tiny models: its table, resuming, cells that fail or are killed."""

import csv
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

from cells_here import check_that_records_stand_for_folders, in_process
from collegium.benchmarks import cells as module
from collegium.benchmarks.run_suite import run_suite, tabulate
from collegium.benchmarks.suite import load_suite
from collegium.benchmarks.tables import latex, markdown
from collegium.cli.main import app
from collegium.core.errors import InputError
from collegium.flow.simulate import alone

SUITE = {
    "name": "tiny",
    "recipe": "recipe.yaml",
    "seeds": [0, 1],
    "reference": "ours/soup",
    "variants": {
        "ours": {"others": True, "set": {"evaluation.baselines": ["btm"]}},
        "lda": {"set": {"router.init": "lda"}, "note": "another router"},
        "alone": {"owners": ["port"], "seeds": [1]},
    },
}


@pytest.fixture(scope="module")
def suite_path(make_recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(make_recipe().model_dump(mode="json")))
    (folder / "suite.yaml").write_text(yaml.safe_dump(SUITE, sort_keys=False))
    return folder / "suite.yaml"


def bench(suite, path, out, overrides=None, threads=None):
    run_suite(suite, path, out, overrides, threads=threads)
    return tabulate(suite, path, out, overrides)


@pytest.fixture(scope="module")
def finished(suite_path, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_start", in_process)
        results = bench(*load_suite(str(suite_path)), out)
    return out, results


def test_every_method_has_a_row(finished):
    _, results = finished
    rows = {row.method: row for row in results.rows}
    beside = ["seed", "expert:farm", "expert:port", "soup", "oracle", "btm"]
    assert set(rows) == {"ours", "lda", "alone", *(f"ours/{method}" for method in beside)}
    assert rows["ours"].seeds == rows["ours/btm"].seeds == [0, 1]
    assert rows["alone"].seeds == [1]
    assert rows["ours/soup"].difference is None  # the reference itself
    assert rows["alone"].difference is None  # of other domains
    assert not results.failures
    assert not results.missing
    difference = rows["ours"].difference
    assert 100 * difference.mean == pytest.approx(
        rows["ours"].values["union mean"][0] - rows["ours/soup"].values["union mean"][0]
    )
    assert difference.low <= difference.mean <= difference.high
    assert 0 <= rows["lda"].values["routed"][0] <= 100
    assert "routed" not in rows["ours/soup"].values


def test_an_expert_is_trained_once_for_all_variants(finished):
    out, _ = finished
    kept = sorted(path.parent.name for path in (out / "seed-1" / "work" / "owners").glob("*/expert-*"))
    assert kept == ["farm", "port", "port"]  # alone, port competes with no other labels: that is another training


def test_the_tables_say_the_same(finished):
    out, results = finished
    lines = (out / "table.md").read_text().splitlines()
    mean, std = next(row for row in results.rows if row.method == "lda").values["union mean"]
    [line] = [line for line in lines if line.startswith("| lda ")]
    assert f"| {mean:.1f} ± {std:.1f} |" in line
    assert "* `lda`: another router" in lines
    with (out / "table.csv").open() as file:
        [row] = [row for row in csv.DictReader(file) if row["method"] == "lda"]
    assert float(row["union mean"]) == pytest.approx(mean, abs=1e-3)
    assert float(row["union mean std"]) == pytest.approx(std, abs=1e-3)
    assert row["seeds"] == "0 1"
    text = (out / "table.tex").read_text()
    body = re.search(r"\\midrule\n(.*)\\bottomrule", text, re.S)[1].strip().splitlines()
    assert len(body) == len(results.rows)
    columns = re.search(r"begin\{tabular\}\{(\w+)\}", text)[1]
    assert {line.count("&") + 1 for line in body} == {len(columns)}


def test_seconds_and_memory_are_those_of_the_first_variant_which_finds_nothing_done(finished):
    out, results = finished
    assert list(results.stages) == ["pool", "charter", "contribute:farm", "contribute:port", "unify", "evaluate"]
    stages = [json.loads((out / f"seed-{seed}" / "ours" / "stages.json").read_bytes()) for seed in (0, 1)]
    (mean, _), (peak, _) = results.stages["contribute:farm"]
    assert mean == pytest.approx(sum(found["contribute:farm"]["seconds"] for found in stages) / 2)
    assert f"| contribute:farm | {mean:.1f} ± " in markdown(results)
    assert peak > 1


def test_records_have_the_fields_of_all_benchmarks(finished):
    out, results = finished
    records = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    fields = {
        *("benchmark", "method", "case", "random_seed", "threads", "seconds", "peak_bytes", "metrics", "versions"),
        *("settings", "stages", "asked", "scores", "also"),
    }
    assert all(set(record) == fields for record in records)
    assert len(records) == sum(len(row.seeds) for row in results.rows)


def test_a_finished_suite_runs_nothing_again(finished, suite_path, monkeypatch):
    out, results = finished
    monkeypatch.setattr(module, "_start", None)
    assert bench(*load_suite(str(suite_path)), out) == results


def test_the_records_alone_make_the_same_tables_and_nothing_is_run(finished, suite_path, tmp_path, monkeypatch):
    out, results = finished
    check_that_records_stand_for_folders(out, results, suite_path, tmp_path, monkeypatch)


@pytest.mark.parametrize("summary", ["", "{}", "[]", '{"accuracy": {}}'])
def test_a_run_folder_of_another_version_counts_as_not_run(suite_path, tmp_path, summary):
    folder = tmp_path / "seed-0" / "ours"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(summary)
    assert "seed 0, ours" in tabulate(*load_suite(str(suite_path)), tmp_path).missing


def test_records_of_other_settings_are_in_no_table_and_are_not_lost(finished, suite_path, tmp_path):
    out, results = finished
    shutil.copy(out / "rows.jsonl", tmp_path)
    suite, path = load_suite(str(suite_path))
    assert tabulate(suite, path, tmp_path, ["router.shrinkage=2"]).rows == []
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == len(results.records)
    assert tabulate(suite, path, tmp_path).rows == results.rows


def test_a_changed_setting_runs_again(finished, suite_path, monkeypatch):
    out, _ = finished
    suite, path = load_suite(str(suite_path))
    started = []
    monkeypatch.setattr(module, "_start", lambda cell, threads: started.append(cell.name) or in_process(cell, threads))
    tabulate(suite, path, out)
    assert started == []
    bench(suite.part([1], None), path, out, ["router.shrinkage=2"])
    assert started == ["seed 1, ours", "seed 1, lda", "seed 1, alone"]
    assert [row.seeds for row in tabulate(suite, path, out).rows if row.method == "ours"] == [[0]]
    bench(suite.part([1], None), path, out)  # for the other tests


def test_a_changed_version_runs_again_but_stays_in_the_table_until_then(finished, suite_path, monkeypatch):
    out, results = finished
    suite, path = load_suite(str(suite_path))
    assert "collegium 0" in markdown(results)
    monkeypatch.setattr("collegium.benchmarks.kind.version", lambda package: "0")
    assert tabulate(suite, path, out).rows == results.rows
    started = []
    monkeypatch.setattr(module, "_start", lambda cell, threads: started.append(cell.name) or in_process(cell, threads))
    run_suite(suite.part([1], ["lda"]), path, out)
    assert started == ["seed 1, lda"]


def test_a_reference_that_is_no_row_is_named(finished, suite_path):
    out, _ = finished
    suite, path = load_suite(str(suite_path))
    with pytest.raises(InputError, match=r"reference ours/sup is no method(.|\n)*soup"):
        tabulate(suite.model_copy(update={"reference": "ours/sup"}), path, out)


def test_a_cell_that_fails_stops_no_other_and_is_tried_again(suite_path, tmp_path):
    suite, path = load_suite(str(suite_path))
    suite = suite.part([1], ["lda", "alone"])
    suite = suite.model_copy(update={"reference": "lda"})
    data = Path(yaml.safe_load((path.parent / "recipe.yaml").read_text())["owners"]["farm"]["data"])
    moved = data.rename(data.with_suffix(".moved"))
    try:
        results = bench(suite, path, tmp_path, threads=1)
    finally:
        moved.rename(data)
    assert set(results.failures) == {"seed 1, lda"}
    assert data.name in results.failures["seed 1, lda"]
    assert [row.method for row in results.rows] == ["alone"]
    assert "**Failed**" in markdown(results)
    assert "* seed 1, lda: " in markdown(results)
    again = bench(suite, path, tmp_path, threads=1)
    assert not again.failures
    assert [row.method for row in again.rows] == ["lda", "alone"]


def test_seeds_run_side_by_side_in_processes_with_the_same_result(finished, suite_path, tmp_path, monkeypatch):
    out, _ = finished
    suite, path = load_suite(str(suite_path))
    true, at_work = module._start, []

    def watched(cell, threads):
        process = true(cell, threads)
        at_work.append(len(multiprocessing.active_children()))
        return process

    monkeypatch.setattr(module, "_start", watched)
    run_suite(suite.part(None, ["lda"]), path, tmp_path, jobs=2, threads=torch.get_num_threads())
    assert at_work == [1, 2]  # the second starts while the first is at work
    for seed in (0, 1):
        alone, together = (
            json.loads((folder / f"seed-{seed}" / "lda" / "summary.json").read_bytes()) for folder in (out, tmp_path)
        )
        assert together["hashes"] == alone["hashes"]
        assert together["accuracy"] == alone["accuracy"]


def test_a_killed_process_is_a_failed_cell(suite_path, tmp_path, monkeypatch):
    suite, path = load_suite(str(suite_path))
    suite = suite.part([0], None)
    true = module._start

    def kill_first(cell, threads):
        process = true(cell, threads)
        if cell.variant == "ours":
            os.kill(process.pid, signal.SIGKILL)
        return process

    monkeypatch.setattr(module, "_start", kill_first)
    results = bench(suite, path, tmp_path, threads=1)
    assert list(results.failures) == ["seed 0, ours"]
    assert "ended with code -9" in results.failures["seed 0, ours"]
    assert [row.method for row in results.rows] == ["lda"]
    monkeypatch.setattr(module, "_start", in_process)
    again = bench(suite, path, tmp_path)
    assert not again.failures
    assert latex(again).count(r"\\") == 1 + len(again.rows)


PARENT = """
import multiprocessing, threading, time
from collegium.benchmarks.cells import _follow_parent

def work():
    threading.Thread(target=_follow_parent, daemon=True).start()
    print(multiprocessing.current_process().pid, flush=True)
    time.sleep(600)

if __name__ == "__main__":
    process = multiprocessing.get_context("forkserver").Process(target=work)
    process.start()
    process.join()
"""


def test_a_cell_ends_with_its_suite_even_if_that_is_killed(tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    command = [sys.executable, str(tmp_path / "parent.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        os.kill(int(parent.stdout.readline()), 0)  # the child is at work
        parent.kill()
        assert parent.stdout.read() == ""  # which ends when the child, who writes there too, is gone


def test_two_starts_in_one_folder_do_not_meet(suite_path, tmp_path):
    (tmp_path / "seed-0").mkdir()
    with alone(tmp_path / "seed-0"), pytest.raises(InputError, match="Another run is at work"):
        bench(*load_suite(str(suite_path)), tmp_path)


def test_the_command_prints_the_table_and_tells_of_failures(finished, suite_path, tmp_path):
    out, _ = finished
    found = CliRunner().invoke(app, ["bench", str(suite_path), "--out", str(out), "--table"])
    assert found.exit_code == 0, found.output
    assert "| ours/soup |" in found.output
    assert str(out / "rows.jsonl") in found.output.replace("\n", "")
    found = CliRunner().invoke(app, ["bench", str(suite_path), "--out", str(out), "--table", "--reference", "lda"])
    assert "− lda |" in found.output
    assert "− lda |" not in (out / "table.md").read_text()
    for wrong in (
        ["--seed", "7"],
        ["--variant", "theirs"],
        ["--reference", "lda"],
        ["--table", "--reference", "lda/soup"],
    ):
        found = CliRunner().invoke(app, ["bench", str(suite_path), "--out", str(tmp_path), *wrong])
        assert isinstance(found.exception, InputError)


def test_some_variants_may_be_run_first(suite_path, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_start", in_process)
    suite, path = load_suite(str(suite_path))
    run_suite(suite.part([1], ["alone"]), path, tmp_path)
    results = tabulate(suite.part([1], None), path, tmp_path)
    assert [row.method for row in results.rows] == ["alone"]
    assert results.missing == ["seed 1, ours", "seed 1, lda"]
    assert "Not run: seed 1, ours; seed 1, lda." in markdown(results)
