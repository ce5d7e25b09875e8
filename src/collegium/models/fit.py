"""The one training loop: transformers.Trainer with a loss function, resumable, with a progress bar.

Checkpoints are written after every epoch, or ten times in a fixed number of steps, and marked when complete, because a
process killed while Trainer writes one leaves half a folder. A resumed run ends with the same weights as an undisturbed
one (on one kind of CPU). Mixed precision and several GPUs are Trainer's. Dropout is off, as in the published recipe;
nothing is logged, since losses on private data belong to nobody else.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from collegium.core.artifacts import writing_error
from collegium.core.errors import RunError
from collegium.core.progress import Bar, progress_bar
from collegium.core.random_streams import stream_seed
from collegium.core.recipe import JointTuningSettings, TrainingSettings

COMPLETE = "complete"
CHECKPOINTS = 10  # in a training of a fixed number of steps


def fit(
    model: nn.Module,
    num_examples: int,
    collate: Callable[[list[int]], dict[str, Any]],
    loss: Callable[[nn.Module, dict[str, Any]], Tensor],
    settings: TrainingSettings | JointTuningSettings,
    random_seed: int,
    description: str,
    checkpoints: Path | None = None,
) -> None:
    """Train the parameters of `model` that require a gradient, in place.

    Args:
        num_examples: examples are the integers below it.
        collate: rows → batch; called for each batch, so texts are tokenised as they are needed.
        loss: (model, batch) → scalar.
        checkpoints: folder to resume from; None = a temporary one.

    Raises:
        RunError: the loss became non-finite.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with TemporaryDirectory() as temporary:
        folder = checkpoints or Path(temporary)
        trainer = _Trainer(
            model=model,
            args=_arguments(settings, folder, random_seed, save=checkpoints is not None),
            train_dataset=_Rows(num_examples),
            data_collator=collate,
            loss=loss,
        )
        fixed = settings.steps if isinstance(settings, TrainingSettings) else None
        steps = fixed or -(-num_examples // settings.batch_size) * (settings.epochs or 1)
        with progress_bar(description, steps) as bar:
            trainer.remove_callback(PrinterCallback)  # it prints the loss
            trainer.add_callback(_Progress(bar))
            try:
                trainer.train(resume_from_checkpoint=_last_complete(folder))
            except (OSError, SafetensorError) as error:
                raise writing_error(folder, error) from error
    model.eval()


class _Rows(Dataset):
    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, row: int) -> int:
        return row


class _Trainer(Trainer):
    def __init__(self, *args: Any, loss: Callable[[nn.Module, dict[str, Any]], Tensor], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._loss = loss
        self.model_accepts_loss_kwargs = False

    def compute_loss(self, model: nn.Module, inputs: dict, *args: Any, **kwargs: Any) -> Tensor:
        value = self._loss(model, inputs)
        if not torch.isfinite(value):
            raise RunError(
                "The training loss became infinite or not a number.",
                do="use a smaller training.learning_rate, or training.precision=float32",
            )
        return value


class _Progress(TrainerCallback):
    def __init__(self, bar: Bar):
        self.bar, self.done = bar, 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.advance(state.global_step - self.done)
        self.done = state.global_step

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        (Path(args.output_dir) / f"checkpoint-{state.global_step}" / COMPLETE).touch()


def _arguments(
    settings: TrainingSettings | JointTuningSettings, folder: Path, random_seed: int, save: bool
) -> TrainingArguments:
    extra: dict[str, Any] = {}
    steps = settings.steps if isinstance(settings, TrainingSettings) else None
    if isinstance(settings, TrainingSettings):
        extra = {
            "max_steps": settings.steps or -1,
            "weight_decay": settings.weight_decay,
            "warmup_steps": settings.warmup_steps,
            "lr_scheduler_type": settings.schedule,
            "bf16": settings.precision == "bfloat16",
            "fp16": settings.precision == "float16",
        }
    return TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=settings.epochs or 1,  # where there are none, max_steps rules
        per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        seed=stream_seed(random_seed, "training"),
        full_determinism=True,
        data_seed=stream_seed(random_seed, "training order"),
        save_strategy="no" if not save else "epoch" if steps is None else "steps",
        save_steps=max(1, (steps or 1) // CHECKPOINTS),
        save_total_limit=1,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        **extra,
    )


def _last_complete(folder: Path) -> str | None:
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    complete = [path for path in found if (path / COMPLETE).exists()]
    for path in found:
        if path not in complete:
            shutil.rmtree(path)
    return str(complete[-1]) if complete else None
