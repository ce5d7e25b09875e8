"""Contributions made by hand: any expert, any routing vector, any proxies, without training."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from collegium.models.expert_tensors import ffn_tensors
from collegium.models.seed_model import SeedModel
from collegium.owner.charter import Charter
from collegium.owner.contribution import write_contribution
from collegium.selection.pool import Pool, is_held_out
from collegium.unify.router_init import pool_statistics


@pytest.fixture(scope="session")
def make_expert(seed: SeedModel) -> Callable[..., dict[str, Tensor]]:
    """The seed's FFNs plus noise, under neutral names."""

    def make(layers: Sequence[int] = (1, 2), noise: float = 0.05, random_seed: int = 0) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(random_seed)
        return {
            name: tensor + noise * torch.randn(tensor.shape, generator=generator)
            for name, tensor in ffn_tensors(seed, layers).items()
        }

    return make


@pytest.fixture(scope="session")
def make_factors(seed: SeedModel) -> Callable[..., dict[str, Tensor]]:
    """LoRA factors for the seed's FFNs, under neutral names."""

    def make(layers: Sequence[int] = (1, 2), rank: int = 2, random_seed: int = 0) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(random_seed)
        factors = {}
        for name, tensor in ffn_tensors(seed, layers).items():
            if name.endswith(".weight"):
                shapes = {"A": (rank, tensor.shape[1]), "B": (tensor.shape[0], rank)}
                for kind, shape in shapes.items():
                    factors[f"{name.removesuffix('.weight')}.lora_{kind}"] = 0.2 * torch.randn(
                        shape, generator=generator
                    )
        return factors

    return make


@pytest.fixture(scope="session")
def held_out_rows(pool: Pool) -> list[int]:
    rows = [row for row, value in enumerate(pool.hashes) if is_held_out(value, 10)]
    assert 5 < len(rows) < 18
    return rows


@pytest.fixture
def make_contribution(
    seed: SeedModel,
    pool: Pool,
    held_out_rows: list[int],
    make_expert: Callable[..., dict[str, Tensor]],
    make_factors: Callable[..., dict[str, Tensor]],
    tmp_path: Path,
) -> Callable[..., Path]:
    """A contribution that passes every check; its proxies are the held-out items and some others.

    Under a LoRA charter its expert is factors.
    """

    def make(
        charter: Charter,
        owner: str,
        expert: Mapping[str, Tensor] | None = None,
        rows: Sequence[int] | None = None,
        name: str | None = None,
    ) -> Path:
        index = charter.owners.index(owner)
        others = [row for row in range(len(pool)) if row not in held_out_rows][index * 2 : index * 2 + 3]
        rows = [*held_out_rows, *others] if rows is None else rows
        layers = charter.routed_layers(seed.num_layers)
        generator = np.random.default_rng(index)
        means = [one.mean for one in pool_statistics(seed, pool, layers, 10)]
        routing = {
            layer: mean + 0.3 * generator.normal(size=seed.dim) for layer, mean in zip(layers, means, strict=True)
        }
        path = tmp_path / "contributions" / (name or owner)
        trained = charter.trained_layers(seed.num_layers)
        if expert is None and charter.terms.training.parameters == "lora":
            expert = make_factors(trained, charter.terms.training.rank, random_seed=index)
        expert = make_expert(trained, random_seed=index) if expert is None else expert
        write_contribution(path, owner, charter, expert, routing, [pool.hashes[row] for row in rows], [])
        return path

    return make
