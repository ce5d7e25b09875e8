"""Runs EleutherAI's lm-evaluation-harness (https://github.com/EleutherAI/lm-evaluation-harness) on a unified decoder.

The harness is given the loaded model, so that no code of the folder runs. It pads a batch of log-likelihoods on the
right and passes no mask: harmless where no token sees those after it, but the mean of `context: seed` would take the
padding in. Such a model gets one request at a time.
"""

import contextlib
import importlib
import importlib.util
import io
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from collegium.core.artifacts import MANIFEST, read_artifact
from collegium.core.errors import ArtifactError, InputError
from collegium.moe.configuration import MoEConfig

BATCH_SIZE = 16
KEPT = ("results", "versions", "n-shot", "n-samples", "higher_is_better", "lm_eval_version")


@dataclass(frozen=True)
class Score:
    """One metric of one task; `error` is its standard error, None where the harness has none."""

    task: str
    metric: str
    value: float
    error: float | None


def run_harness(model: Path, tasks: Sequence[str], folder: Path | None = None, quiet: bool = False) -> dict[str, Any]:
    """What the harness found, as it names it: `results`, `versions`, `n-shot`, `n-samples`, …

    Args:
        model: a unified or merged folder of a decoder; with a manifest it is checked first.
        folder: of task files (YAML); None = the built-in tasks alone, whose data come from the hub.

    Raises:
        InputError: lm-eval is not installed, a task is unknown, or its data cannot be loaded.
        ArtifactError: no unified decoder.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise InputError("lm-eval is not installed.", do="pip install 'collegium[eval]'")
    if not tasks:
        raise InputError("No task is named.", expected="names with commas between them")
    _check_decoder(model)
    harness, models = _imported("lm_eval"), _imported("lm_eval.models.huggingface")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    shown = contextlib.nullcontext() if sys.stderr.isatty() and not quiet else contextlib.redirect_stderr(io.StringIO())
    with contextlib.redirect_stdout(sys.stderr), shown:  # what the harness prints must not tear a JSON
        manager, loaded = _load_tasks(tasks, folder)
        decoder, tokenizer = _load(model)
        batch_size = 1 if decoder.config.context == "seed" else BATCH_SIZE
        wrapped = models.HFLM(decoder, backend="causal", tokenizer=tokenizer, batch_size=batch_size)
        found = harness.simple_evaluate(wrapped, tasks=loaded, task_manager=manager, log_samples=False)
    return {name: found[name] for name in KEPT if name in found}


def scores(found: dict[str, Any]) -> list[Score]:
    """The rows of a table, in the order of the harness."""
    rows = []
    for task, metrics in found["results"].items():
        for name, value in metrics.items():
            metric, separator, kind = name.partition(",")  # "acc,none": a metric and the filter of the answers
            if not separator or metric.endswith("_stderr") or not isinstance(value, (int, float)):
                continue
            error = metrics.get(f"{metric}_stderr,{kind}")
            shown = metric if kind == "none" else f"{metric} ({kind})"
            rows.append(Score(task, shown, float(value), error if isinstance(error, float) else None))
    return rows


def _imported(name: str) -> Any:
    """A module of the harness, which the type checker need not find."""
    return importlib.import_module(name)


def _check_decoder(path: Path) -> None:
    if (path / MANIFEST).is_file():
        read_artifact(path)
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} is no unified model.", got=str(error).splitlines()[0]) from None
    names = config.architectures or []
    if not isinstance(config, MoEConfig) or not any(name.endswith("ForCausalLM") for name in names):
        raise ArtifactError(
            f"{path} is no unified decoder, and lm-eval asks a language model.",
            got=", ".join(names) or "no architecture",
            expected="a unified …ForCausalLM",
            do="evaluate an encoder with an owner's recipe",
        )


def _load(path: Path) -> tuple[Any, Any]:
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=False, use_safetensors=True)
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} cannot be loaded.", got=str(error).splitlines()[0]) from None
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def _load_tasks(tasks: Sequence[str], folder: Path | None) -> tuple[Any, list[Any]]:
    """The harness's list of tasks, and those that are asked for; its own thousands are read only where needed."""
    make_manager = _imported("lm_eval.tasks").TaskManager
    own: list[str] = []
    if folder is not None:
        if not folder.is_dir():
            raise InputError("The folder of tasks is not there.", got=folder)
        own = make_manager(include_path=folder, include_defaults=False).all_tasks
    manager = make_manager(include_path=folder, include_defaults=not set(tasks) <= set(own))
    unknown = sorted(set(tasks) - set(manager.all_tasks))
    if unknown:
        raise InputError(
            "lm-eval has no such task.",
            got=", ".join(unknown),
            expected=f"one of {', '.join(own)} (of {folder}), or a built-in one" if own else "a built-in one",
            do="name the folder of your task files with --lm-eval-tasks-folder; `lm-eval ls tasks` lists the others",
        )
    try:
        loaded = manager.load(list(tasks))
    except Exception as error:  # whatever a task file can do wrong, or its data
        raise InputError(
            "A task cannot be loaded.",
            got=f"{', '.join(tasks)}: {type(error).__name__}: {(str(error) or 'no reason').splitlines()[0][:300]}",
            do="check the task file and the path of its data; the data of built-in tasks come from the hub",
        ) from None
    everything = {**loaded["tasks"], **loaded.get("groups", {})}
    return manager, [everything.get(name, name) for name in tasks]
