"""Answers of the baselines of one-shot unification, on the same experts and the same test examples as ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float32, Float64

from collegium.core.progress import say
from collegium.core.recipe import Baseline
from collegium.data.examples import Examples
from collegium.evaluation.evaluate import Correct, Domain, evaluate, grade
from collegium.models.choices import choice_log_likelihoods
from collegium.models.encoder import Encoder
from collegium.models.expert_tensors import dense_model
from collegium.models.tasks import Classes
from collegium.unify.baselines.btm import domain_posterior, mixed, most_likely
from collegium.unify.baselines.fedavg import fedavg
from collegium.unify.baselines.not_private import btx, pooled
from collegium.unify.baselines.soup import searched_soup, task_arithmetic
from collegium.unify.routed_model import Ingredients

TOP = 2  # experts that btm-top runs
Scores = Float32[np.ndarray, "items classes"] | Sequence[Float32[np.ndarray, " choices"]]


@dataclass(frozen=True)
class Baselines:
    """The baselines of one run.

    Attributes:
        ingredients: with the classes of every domain.
        start: the classes as training finds them: with a head, the rows that owners began with.
        private: training examples of every owner, for the references that are not private.
    """

    ingredients: Ingredients
    start: Classes
    private: Mapping[str, Examples]
    domains: Sequence[Domain]
    batch_size: int

    def answers(self, name: Baseline) -> Mapping[str, Correct]:
        """Domain → which test examples a baseline answers right."""
        seed, classes, ingredients = self.ingredients.seed, self.ingredients.classes, self.ingredients
        if name in ("searched-soup", "task-arithmetic"):
            search = searched_soup if name == "searched-soup" else task_arithmetic
            tensors, setting = search(ingredients)
            say(f"{name}: {', '.join(f'{value:.2f}' for value in setting)}")
            return evaluate(dense_model(seed, tensors), self.domains, classes, self.batch_size)
        if name == "btx":
            model = Encoder(btx(ingredients, self.private), seed.tokenizer, seed.pooling, seed.max_length)
            return evaluate(model, self.domains, classes, self.batch_size)
        if name in ("fedavg", "pooled"):
            tensors, own_classes = (fedavg if name == "fedavg" else pooled)(ingredients, self.start, self.private)
            return evaluate(dense_model(seed, tensors), self.domains, own_classes, self.batch_size)
        return self._ensemble(name)

    def _ensemble(self, name: Baseline) -> Mapping[str, Correct]:
        texts = [text for domain in self.domains for text in domain.texts]
        experts = len(self.ingredients.experts)
        if name == "btm":
            every = np.full((len(texts), experts), 1 / experts)
        else:
            every = domain_posterior(self.ingredients, texts)
        if name == "btm-top":
            every = most_likely(every, min(TOP, experts))
        ends = np.cumsum([len(domain.texts) for domain in self.domains])[:-1]
        return {
            domain.name: self._mixed(domain, weights)
            for domain, weights in zip(self.domains, np.split(every, ends), strict=True)
        }

    def _mixed(self, domain: Domain, weights: Float64[np.ndarray, "items experts"]) -> Correct:
        found = self._scores[domain.name]
        if domain.choices is None:
            logits = mixed([own for own in found if isinstance(own, np.ndarray)], weights)
            return grade(logits.astype(np.float32), domain, self.ingredients.classes)
        best = [
            int(mixed([own[row][None] for own in found], weights[row : row + 1]).argmax())
            for row in range(len(weights))
        ]
        right = np.array(best) == domain.targets
        return Correct(told=right, union=right)

    @cached_property
    def _scores(self) -> dict[str, list[Scores]]:
        """Domain → what every expert says, asked once for all ensembles."""
        scores: dict[str, list[Scores]] = {domain.name: [] for domain in self.domains}
        for tensors in self.ingredients.experts.values():
            expert = dense_model(self.ingredients.seed, tensors)  # one model is in memory at a time
            for domain in self.domains:
                scores[domain.name].append(self._ask(expert, domain))
        return scores

    def _ask(self, expert: Encoder, domain: Domain) -> Scores:
        if domain.choices is None:
            return self.ingredients.classes.logits(expert, domain.texts, self.batch_size)
        return choice_log_likelihoods(expert, domain.prompt, domain.texts, domain.choices)
