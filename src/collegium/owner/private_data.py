"""An owner's private training data, read and checked against the charter."""

from collegium.core.errors import DataError, InputError
from collegium.core.recipe import OwnerRecipe
from collegium.data.examples import Examples, load_splits
from collegium.owner.charter import Charter


def load_private(charter: Charter, recipe: OwnerRecipe) -> Examples:
    """The owner's training examples, with labels that the charter allows.

    Raises:
        InputError: the charter does not name this owner.
        DataError: a label that the charter does not name; for a head, a class of the charter without an example.
    """
    if recipe.name not in charter.terms.owners:
        raise InputError("The charter does not name this owner.", got=recipe.name, expected=", ".join(charter.owners))
    random_seed = charter.terms.random_seed
    columns = recipe.columns.of_task(charter.terms.task)
    private = load_splits(recipe.data, columns, recipe.limits, random_seed, recipe.name).train
    if charter.terms.task == "causal-text":
        return private
    if private.labels is None:
        raise DataError(
            f"The private data of {recipe.name} have no labels.",
            expected="a class name for each example",
            do="name the column in columns.label",
        )
    published = charter.terms.owners[recipe.name].labels
    if published and private.choices is not None:
        raise DataError(
            f"The examples of {recipe.name} have choices of their own, but its charter names classes.",
            got="columns.choices",
            expected=", ".join(published),
            do="leave columns.choices out, or ask the coordinator for a charter without these classes",
        )
    unknown = sorted(set(private.labels) - set(published)) if published else []
    if unknown:
        raise DataError(
            f"The private data of {recipe.name} hold classes that the charter does not name.",
            got=", ".join(unknown[:5]),
            expected=", ".join(published or []),
            do="correct the labels, or ask the coordinator for another charter",
        )
    missing = sorted(set(published or []) - set(private.labels)) if charter.terms.task == "label-head" else []
    if missing:  # found here, before a release of these data is remembered
        raise DataError(
            f"The private data of {recipe.name} hold no example of some classes of the charter.",
            got=f"none of {', '.join(missing[:5])}",
            expected="one or more of each: a row of the head is trained for every class",
            do="add examples, or ask the coordinator for a charter without these classes",
        )
    return private
