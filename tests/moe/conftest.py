"""Unified models made by hand from the tiny seed, without the rooms above `moe`."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from collegium.models.seed_model import SeedModel
from collegium.moe.layer import MoEFeedForward
from collegium.moe.modeling import CollegiumBertConfig, CollegiumBertModel

NOT_OURS = ("model_type", "transformers_version", "_name_or_path", "dtype", "architectures")


@pytest.fixture(scope="session")
def make_moe(seed: SeedModel) -> Callable[..., CollegiumBertModel]:
    """A unified model whose experts are the seed's FFN plus `noise`, with random routers."""

    def make(
        num_owners: int = 3, noise: float = 0.0, steepness: float = 1.0, random_seed: int = 0, **options: object
    ) -> CollegiumBertModel:
        own = {key: value for key, value in seed.model.config.to_dict().items() if key not in NOT_OURS}
        names = [f"owner-{index}" for index in range(num_owners)]
        model = CollegiumBertModel(CollegiumBertConfig(**{**own, "expert_names": names, **options}))
        model.load_state_dict(seed.model.state_dict(), strict=False)
        generator = torch.Generator().manual_seed(random_seed)
        with torch.no_grad():
            for layer in moe_layers(model):
                seed_layer = seed.model.encoder.layer[layer.layer]
                for index, expert in enumerate(layer.experts):
                    expert.up_proj.load_state_dict(seed_layer.intermediate.dense.state_dict())
                    expert.down_proj.load_state_dict(seed_layer.output.dense.state_dict())
                    for parameter in expert.parameters() if index < num_owners else ():
                        parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
            for router in model.routers.values():
                router.weight.copy_(steepness * torch.randn(router.weight.shape, generator=generator))
                router.centre.copy_(0.1 * torch.randn(router.centre.shape, generator=generator))
                router.context_weight.fill_(0.5)
        return model.eval()

    return make


def moe_layers(model: nn.Module) -> list[MoEFeedForward]:
    return [module for module in model.modules() if isinstance(module, MoEFeedForward)]


@pytest.fixture(scope="session")
def make_batch(seed: SeedModel) -> Callable[..., dict[str, Tensor]]:
    """Random token ids of given lengths, padded on either side; the same sentence whatever the padding."""

    def make(lengths: list[int], side: str = "right", padding: int = 0, width: int | None = None) -> dict[str, Tensor]:
        width = width or max(lengths)
        ids = torch.full((len(lengths), width), padding)
        mask = torch.zeros((len(lengths), width), dtype=torch.long)
        for row, length in enumerate(lengths):
            generator = torch.Generator().manual_seed(1000 * row + length)
            sentence = torch.randint(4, seed.model.config.vocab_size, (length,), generator=generator)
            part = slice(0, length) if side == "right" else slice(width - length, width)
            ids[row, part] = sentence
            mask[row, part] = 1
        return {"input_ids": ids, "attention_mask": mask}

    return make
