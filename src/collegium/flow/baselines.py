"""Answers of the baselines of one-shot unification, on the same experts and the same test examples as ours."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float64

from collegium.core.progress import say
from collegium.core.recipe import Baseline
from collegium.data.examples import Examples
from collegium.evaluation.evaluate import Correct, Domain, evaluate, grade
from collegium.models.choices import choice_log_likelihoods
from collegium.models.encoder import Encoder
from collegium.models.expert_tensors import dense_model
from collegium.unify.baselines.btm import domain_posterior, mixed, most_likely
from collegium.unify.baselines.fedavg import fedavg
from collegium.unify.baselines.not_private import btx, pooled
from collegium.unify.baselines.soup import searched_soup, task_arithmetic
from collegium.unify.routed_model import Ingredients

TOP = 2  # experts that btm-top runs


def baseline_answers(
    name: Baseline,
    ingredients: Ingredients,
    private: Mapping[str, Examples],
    domains: Sequence[Domain],
    batch_size: int,
) -> Mapping[str, Correct]:
    """Domain → which test examples a baseline answers right.

    Args:
        ingredients: with the classes of every domain.
        private: training examples of every owner, for the references that are not private.
    """
    seed, classes = ingredients.seed, ingredients.classes
    if name in ("searched-soup", "task-arithmetic"):
        search = searched_soup if name == "searched-soup" else task_arithmetic
        tensors, setting = search(ingredients)
        say(f"{name}: {', '.join(f'{value:.2f}' for value in setting)}")
        return evaluate(dense_model(seed, tensors), domains, classes, batch_size)
    if name == "btx":
        model = Encoder(btx(ingredients, private), seed.tokenizer, seed.pooling, seed.max_length)
        return evaluate(model, domains, classes, batch_size)
    if name in ("fedavg", "pooled"):
        tensors, own_classes = (fedavg if name == "fedavg" else pooled)(ingredients, private)
        return evaluate(dense_model(seed, tensors), domains, own_classes, batch_size)
    return _ensemble(name, ingredients, domains, batch_size)


def _ensemble(
    name: Baseline, ingredients: Ingredients, domains: Sequence[Domain], batch_size: int
) -> Mapping[str, Correct]:
    experts = [dense_model(ingredients.seed, tensors) for tensors in ingredients.experts.values()]
    texts = [text for domain in domains for text in domain.texts]
    if name == "btm":
        every = np.full((len(texts), len(experts)), 1 / len(experts))
    else:
        every = domain_posterior(ingredients, texts)
    if name == "btm-top":
        every = most_likely(every, min(TOP, len(experts)))
    ends = np.cumsum([len(domain.texts) for domain in domains])[:-1]
    correct = {}
    for domain, weights in zip(domains, np.split(every, ends), strict=True):
        if domain.choices is None:
            logits = [ingredients.classes.logits(expert, domain.texts, batch_size) for expert in experts]
            correct[domain.name] = grade(mixed(logits, weights).astype(np.float32), domain, ingredients.classes)
        else:
            correct[domain.name] = _own_choices(experts, domain, domain.choices, weights)
    return correct


def _own_choices(
    experts: Sequence[Encoder],
    domain: Domain,
    choices: Sequence[Sequence[str]],
    weights: Float64[np.ndarray, "items experts"],
) -> Correct:
    found = [choice_log_likelihoods(expert, domain.prompt, domain.texts, choices) for expert in experts]
    best = [
        int(mixed([own[row][None] for own in found], weights[row : row + 1]).argmax()) for row in range(len(weights))
    ]
    right = np.array(best) == domain.targets
    return Correct(told=right, union=right)
