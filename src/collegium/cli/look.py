"""`inspect`, `evaluate` and `predict`: looking at artifacts and using a unified model."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from collegium.cli.ledger import print_ledger
from collegium.cli.options import Overrides, Quiet, Threads
from collegium.core.artifacts import read_artifact
from collegium.core.errors import DataError, InputError
from collegium.core.load_recipe import load_recipe
from collegium.core.recipe import Columns, OwnerRecipe, Recipe
from collegium.data.examples import Examples, load_unlabelled
from collegium.data.items import Item
from collegium.owner.charter import read_charter
from collegium.owner.contribution import LEDGER, PROXIES
from collegium.reports.wording import clean, perplexity, shorten


def inspect(
    path: Annotated[Path, typer.Argument(help="a pool, charter, contribution, evaluation or unified model")],
) -> None:
    """Say what is in an artifact; of a contribution, what it reveals."""
    artifact = read_artifact(path)
    console = Console(highlight=False)
    facts = {"kind": artifact.kind, "sha256": artifact.sha256}
    facts |= {f"input {key}": value for key, value in artifact.inputs.items()}
    facts |= {f"setting {key}": value for key, value in artifact.settings.items()}
    for key, value in facts.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        line = f"{clean(key):<24}{shorten(text, 200)}"
        console.print(line, markup=False, soft_wrap=True)  # a hash must not be cut
    files = Table("file", "bytes", "sha256", title="Files (intact)", title_justify="left")
    for name, entry in artifact.files.items():
        files.add_row(escape(clean(name)), f"{entry['bytes']:,}", str(entry["sha256"])[:16])
    console.print(files)
    if artifact.kind == "contribution":
        _print_releases(artifact.path, console)
    if artifact.kind == "charter":
        terms = read_charter(artifact.path).terms.model_dump(mode="json")
        text = yaml.safe_dump(terms, sort_keys=False, allow_unicode=True, width=100)
        console.print("\nTerms", style="bold")
        console.print(clean(text, keep_lines=True), markup=False, soft_wrap=True)


def evaluate(
    model: Annotated[Path, typer.Argument(help="a unified model")],
    recipe: Annotated[
        Path | None,
        typer.Argument(help="an owner's recipe (its test data do not travel), or a simulation's; none with --lm-eval"),
    ] = None,
    lm_eval: Annotated[
        str | None,
        typer.Option("--lm-eval", metavar="TASK,…", help="run these tasks of lm-eval on a decoder instead"),
    ] = None,
    lm_eval_tasks_folder: Annotated[
        Path | None, typer.Option("--lm-eval-tasks-folder", help="folder of task files of your own (YAML)")
    ] = None,
    seed_model: Annotated[
        str | None,
        typer.Option("--seed-model", help="needed only for class names that the charter does not hold"),
    ] = None,
    split: Annotated[str, typer.Option(help="test or validation")] = "test",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    overrides: Overrides = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Accuracy by domain, told and union of labels, or perplexity; routing; speed. Or lm-eval on a decoder."""
    from collegium.flow.evaluate_model import evaluate_model
    from collegium.flow.simulate import owner_recipe

    if (recipe is None) == (lm_eval is None):
        raise InputError("What to evaluate on is not clear.", expected="either a recipe or --lm-eval")
    if recipe is None:
        names = [name.strip() for name in (lm_eval or "").split(",") if name.strip()]
        _evaluate_with_harness(model, names, lm_eval_tasks_folder, as_json, quiet)
        return
    if split not in ("test", "validation"):
        raise InputError("--split is wrong.", got=split, expected="test or validation")
    if _is_simulation(recipe):
        simulation = load_recipe(recipe, Recipe, overrides)
        owners = [owner_recipe(simulation, name) for name in simulation.owners]
    else:
        owners = [load_recipe(recipe, OwnerRecipe, overrides)]
    results = evaluate_model(model, owners, split, seed_model)
    if as_json:
        print(json.dumps(results, ensure_ascii=False, indent=2))
        return
    console = Console(highlight=False)
    figures = ("perplexity",) if "perplexity" in results else ("union", "told")
    table = Table("domain", "inputs", *figures, *(f"→ {escape(name)}" for name in results["routing"]["experts"]))
    for name, count in results["examples"].items():
        last = list(results["routing"]["by_layer"].values())[-1]
        shares = [f"{share:.1%}" for share in last[name]]
        if "perplexity" in results:
            cells = [perplexity(results["perplexity"][name])]
        else:
            cells = [f"{results['accuracy'][labels][name]:.1%}" for labels in ("union", "told")]
        table.add_row(escape(name), str(count), *cells, *shares)
    console.print(table)
    routed = results["routing"]["sequence"]
    if routed is not None:
        console.print(f"inputs routed to their own domain's expert: {routed:.1%}", markup=False)
    console.print(f"{results['texts_per_second']:.0f} inputs a second", markup=False)


def _evaluate_with_harness(model: Path, tasks: list[str], folder: Path | None, as_json: bool, quiet: bool) -> None:
    from collegium.evaluation.lm_harness import run_harness, scores

    found = run_harness(model, tasks, folder, quiet)
    if as_json:
        print(json.dumps(found, ensure_ascii=False, indent=2))
        return
    table = Table("task", "metric", "value", "± standard error")
    for score in scores(found):
        error = "" if score.error is None else f"{score.error:.4f}"
        table.add_row(escape(clean(score.task)), escape(clean(score.metric)), f"{score.value:.4f}", error)
    Console(highlight=False).print(table)


def predict(
    model: Annotated[Path, typer.Argument(help="a unified model")],
    source: Annotated[
        str,
        typer.Argument(help="text file (a text a line), CSV, JSONL, Parquet, - for stdin; a picture, a folder of them"),
    ] = "-",
    text: Annotated[
        list[str], typer.Option(help="column that holds the text; given again, one more, in a line of its own")
    ] = ["text"],  # noqa: B006  typer copies it
    image: Annotated[str | None, typer.Option(help="column that holds the picture, for models of pictures")] = None,
    choices: Annotated[
        list[str] | None,
        typer.Option(help="column of each text's own choices, a list; given again, a column for each choice"),
    ] = None,
    domain: Annotated[
        str | None, typer.Option(help="let only this owner's class names compete; with --choices, use its prompt")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line, also on a terminal")] = False,
    quiet: Quiet = False,
) -> None:
    """Class, probability and experts used, for every text or picture."""
    from collegium.flow.predict import predict_items
    from collegium.unify.unified_folder import read_unified

    own = choices[0] if choices and len(choices) == 1 else choices or None
    examples, places = read_questions(source, Columns(text=text, image=image, label=None, choices=own))
    answers = predict_items(read_unified(model), examples.texts, places, domain, examples.choices)
    console = Console(highlight=False)
    if as_json or not console.is_terminal:
        for answer in answers:
            print(json.dumps(answer, ensure_ascii=False))
        return
    table = Table("input", "domain", "label", "probability", "expert")
    for answer in answers:
        expert, share = max(answer["experts"].items(), key=lambda item: item[1])
        row = (shorten(answer.get("text") or f"picture {answer['image']}", 60), answer["domain"] or "", answer["label"])
        used = f"{clean(expert)} {share:.0%}"
        table.add_row(*(escape(clean(cell)) for cell in row), f"{answer['probability']:.3f}", escape(used))
    console.print(table)


def read_items(source: str, columns: Columns) -> tuple[Sequence[Item], Sequence[int | str]]:
    """What is to be answered, and the place of each.

    Raises:
        DataError: it cannot be read, or holds nothing.
    """
    examples, places = read_questions(source, columns)
    return examples.texts, places


def read_questions(source: str, columns: Columns) -> tuple[Examples, Sequence[int | str]]:
    """What is to be answered, with choices where `columns` names some, and the place of each.

    Raises:
        DataError: it cannot be read, holds nothing, or no choices.
    """
    if source != "-" and (Path(source).suffix not in ("", ".txt") or Path(source).is_dir()):
        return load_unlabelled(source, columns)
    if columns.choices is not None:
        raise DataError("Lines of text hold no choices.", got=source, expected="JSONL, JSON, CSV or Parquet")
    texts = _lines(source)
    return Examples(texts, None), range(1, len(texts) + 1)


def _lines(source: str) -> list[str]:
    try:
        raw = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        lines = raw.decode("utf-8").splitlines()
    except OSError as error:
        raise DataError(f"{source} cannot be read.", got=error.strerror) from None
    except UnicodeDecodeError as error:
        raise DataError(f"{source} is no UTF-8 text.", got=str(error)) from None
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise DataError(f"{source} holds no text.", expected="one text a line")
    return texts


def _is_simulation(recipe: Path) -> bool:
    try:
        return "owners" in (yaml.safe_load(recipe.read_text(encoding="utf-8")) or {})
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError):
        return False  # load_recipe says what is wrong


def _print_releases(path: Path, console: Console) -> None:
    proxies = json.loads((path / PROXIES).read_bytes())
    console.print(f"\n{len(proxies)} proxies: public pool items, by content hash", markup=False)
    print_ledger(json.loads((path / LEDGER).read_bytes()), console)
