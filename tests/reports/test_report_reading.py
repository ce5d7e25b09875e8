"""A missing or malformed summary is one clear error with exit code 2; missing optional parts are no error."""

import json

import pytest

from collegium.core.errors import ArtifactError
from collegium.reports.page import write_report
from collegium.reports.reading import parse_summary, read_run_summary

MINIMAL = {"project": "p", "accuracy": {"unified": {"union": {"a": 0.5, "b": 0.7}}}}


def test_a_full_summary_is_read(summary, tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert read_run_summary(tmp_path).domains == ["newsroom", "cinema", "distribution"]


def test_a_mean_that_is_missing_is_the_macro_average():
    assert parse_summary(MINIMAL).mean("unified", "union") == pytest.approx(0.6)
    assert parse_summary(MINIMAL).mean("unified", "told") is None
    assert parse_summary(MINIMAL).mean("soup", "union") is None


def test_unknown_keys_are_passed_over():
    assert parse_summary({**MINIMAL, "later": 1, "pool": {"items": 3, "new": 2}}).pool.items == 3


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no valid JSON"),
        (b"{", "no valid JSON"),
        (b"\xff", "no valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "holds no summary"),
        (b"{}", "project: Field required"),
        (b'{"project": "p", "accuracy": {}}', "neither accuracy nor perplexity"),
        (b'{"project": "p", "accuracy": {"seed": {"union": {"a": 1.5}}}}', "accuracy.seed.union.a: "),
        (b'{"project": "p", "accuracy": {"seed": {"union": {"a": NaN}}}}', "accuracy.seed.union.a: "),
        (b'{"project": "p", "accuracy": {"seed": {"union": {"\\u001b[2J": 7}}}}', "\\x1b[2J"),
        (b'{"project": "p", "accuracy": {"seed": {}}, "examples": {"a": 0}}', "examples.a: "),
        (b'{"project": "p", "accuracy": {"seed": {}}, "pool_map": {"pool": [[0, 2]]}}', "pool_map.pool.0.1: "),
        (b'{"project": "p", "accuracy": {"seed": {}}, "intervals": {"seed": {"told": {"a": [0]}}}}', "intervals.seed."),
        (
            b'{"project": "p", "accuracy": {"seed": {}}, "stages": {"pool": {"seconds": Infinity}}}',
            "pool.seconds: ",
        ),
    ],
)
def test_a_malformed_summary_says_what_and_what_to_do(content, says, tmp_path):
    (tmp_path / "summary.json").write_bytes(content)
    with pytest.raises(ArtifactError) as error:
        write_report(tmp_path)
    assert error.value.exit_code == 2
    assert says in str(error.value)
    assert "what to do: run `collegium run RECIPE` again" in str(error.value)
    assert "\x1b" not in str(error.value)
    assert not (tmp_path / "report.html").exists()


def test_a_run_without_a_summary_and_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ArtifactError, match=r"holds no summary\.json"):
        write_report(tmp_path)
    with pytest.raises(ArtifactError, match="no run folder"):
        write_report(tmp_path / "elsewhere")
