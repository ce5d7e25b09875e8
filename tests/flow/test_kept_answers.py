"""Answers are kept example by example, and nobody is asked twice."""

import json

import numpy as np
import pytest

from collegium.core.artifacts import read_artifact
from collegium.evaluation.evaluate import Correct, accuracies
from collegium.flow.kept_answers import answer_bytes, kept_answers, read_answers
from collegium.flow.simulate import simulate


def correct(*values):
    return Correct(told=np.array([True] * len(values)), union=np.array(values, dtype=bool))


def same(one, other):
    assert one.keys() == other.keys()
    return all((one[n].union == other[n].union).all() and (one[n].told == other[n].told).all() for n in one)


def test_what_was_answered_is_not_asked_again(tmp_path):
    answers = {"farm": correct(1, 0, 1), "port": correct(0, 0)}
    assert same(kept_answers(tmp_path, "texts", ["seed", "1"], lambda: answers), answers)
    assert same(kept_answers(tmp_path, "texts", ["seed", "1"], lambda: 1 / 0), answers)


@pytest.mark.parametrize(("asked", "answering"), [("others", ["seed", "1"]), ("texts", ["seed", "2"])])
def test_another_question_is_asked(tmp_path, asked, answering):
    kept_answers(tmp_path, "texts", ["seed", "1"], lambda: {"farm": correct(0)})
    with pytest.raises(ZeroDivisionError):
        kept_answers(tmp_path, asked, answering, lambda: 1 / 0)


def test_a_damaged_file_is_asked_for_again(tmp_path):
    kept_answers(tmp_path, "texts", ["seed"], lambda: {"farm": correct(0, 1)})
    [file] = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    answers = {"farm": correct(1, 1)}
    assert same(kept_answers(tmp_path, "texts", ["seed"], lambda: answers), answers)
    assert same(kept_answers(tmp_path, "texts", ["seed"], lambda: 1 / 0), answers)


def test_a_file_holds_every_method_and_domain(tmp_path):
    answers = {"expert:farm": {"farm": correct(1)}, "soup": {"farm": correct(0), "port": correct(0, 1)}}
    (tmp_path / "answers.safetensors").write_bytes(answer_bytes(answers))
    found = read_answers(tmp_path / "answers.safetensors")
    assert found.keys() == answers.keys()
    assert all(same(found[method], answers[method]) for method in answers)


def test_a_run_keeps_the_answers_that_its_accuracies_count(make_recipe, tmp_path):
    simulate(make_recipe(), tmp_path / "run")
    results = json.loads((tmp_path / "run" / "evaluation" / "results.json").read_bytes())
    found = read_answers(tmp_path / "run" / "evaluation" / "answers.safetensors")
    assert list(results["accuracy"]) == ["seed", "expert:farm", "expert:port", "soup", "unified", "oracle"]
    for method, accuracy in results["accuracy"].items():
        assert accuracies(found[method]).union == accuracy["union"]
        for name, (low, high) in results["intervals"][method]["union"].items():
            assert 0 <= low <= accuracy["union"][name] <= high <= 1


def test_runs_that_share_their_work_train_once_and_give_what_each_gives_alone(make_recipe, tmp_path, monkeypatch):
    other = make_recipe(router={"init": "lda"})
    simulate(other, tmp_path / "alone")
    simulate(make_recipe(), tmp_path / "first", work=tmp_path / "work")
    with monkeypatch.context() as patch:
        patch.setattr("collegium.owner.kept_expert.train_expert", None)
        patch.setattr("collegium.selection.pool._embed", None)
        patch.setattr("collegium.flow.compare.dense_model", None)  # experts and soup have answered
        simulate(other, tmp_path / "second", work=tmp_path / "work")
    alone, second = (json.loads((tmp_path / name / "summary.json").read_bytes()) for name in ("alone", "second"))
    for part in ("hashes", "accuracy", "intervals", "routing"):
        assert second[part] == alone[part]
    evaluations = [read_artifact(tmp_path / name / "evaluation").sha256 for name in ("alone", "second")]
    assert evaluations[0] == evaluations[1]


def test_another_length_of_texts_asks_again(make_recipe, tmp_path):
    simulate(make_recipe(), tmp_path / "run")
    simulate(make_recipe(max_length=8), tmp_path / "run")
    simulate(make_recipe(max_length=8), tmp_path / "alone")
    found, alone = (json.loads((tmp_path / name / "summary.json").read_bytes()) for name in ("run", "alone"))
    assert found["accuracy"] == alone["accuracy"]


def test_a_run_that_is_stopped_leaves_no_summary_of_other_settings(make_recipe, tmp_path, monkeypatch):
    def stop(*_given, **_named):
        raise KeyboardInterrupt

    simulate(make_recipe(), tmp_path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("collegium.flow.simulate.unify", stop)
        simulate(make_recipe(router={"init": "lda"}), tmp_path)
    assert not (tmp_path / "summary.json").exists()
    simulate(make_recipe(router={"init": "lda"}), tmp_path)
    assert (tmp_path / "work").stat().st_mode & 0o077 == 0  # experts and digests of private examples
