"""Uploads a unified model to a model hub: the files of its manifest, with the card and the ledger, and nothing else.

What is uploaded is what was checked: every file against the manifest, and the ledger against the experts, so that no
model is published without the word on what left its owners. Weights of an earlier upload that this model has no more
are deleted in the same commit: after `owners remove`, no tensor of the owner is left in the newest revision.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
)

from collegium.core.artifacts import MANIFEST, Artifact, read_artifact
from collegium.core.errors import ArtifactError, InputError, RunError
from collegium.core.recipe import CAUSAL
from collegium.unify.checkpoint import CONFIG, INDEX, WEIGHTS
from collegium.unify.unified_folder import CARD, CLASSES, FACTS, KIND, LEDGER

# The base class of the hub's own errors: that of the HTTP library it uses, which differs between its versions.
HTTP_ERROR: Any = HfHubHTTPError.__bases__[0]
STALE = (".safetensors", ".safetensors.index.json")
LOG_IN = "log in (`hf auth login`) or set HF_TOKEN to a token that may write there"


def push_model(model: Path, repository: str, private: bool = False, revision: str | None = None) -> str:
    """Upload the unified model at `model` to `repository` (`owner/name`); the address of the commit.

    Args:
        private: make a new repository private; an existing public one is refused.
        revision: branch, made where there is none; None = the main one.

    Raises:
        ArtifactError: no unified model, not complete, changed since it was written, or without a full ledger.
        InputError: a malformed name, a token that is missing or refused, or a public repository with `private`.
        RunError: the hub cannot be reached, or failed.
    """
    artifact = _checked(model)
    files = [*artifact.files, MANIFEST]
    api = HfApi()
    with _hub_errors(api, repository):
        api.create_repo(repository, private=private or None, exist_ok=True)
        if private and not api.repo_info(repository).private:
            raise InputError(
                f"{repository} is public already.", got="--private", do="name a new repository, or make it private"
            )
        if revision is not None:
            api.create_branch(repository, branch=revision, exist_ok=True)
        present = api.list_repo_files(repository, revision=revision)
        commit = api.create_commit(
            repository,
            [
                *(CommitOperationAdd(name, artifact.path / name) for name in files),
                *(CommitOperationDelete(name) for name in present if name.endswith(STALE) and name not in files),
            ],
            commit_message=f"Unified model {artifact.sha256[:16]}",
            revision=revision,
        )
        missing = sorted(set(files) - set(api.list_repo_files(repository, revision=revision)))
    if missing:
        raise RunError(
            f"{repository} did not take every file of the model.",
            got=f"{', '.join(missing)} missing there",
            do="remove the .gitignore of the repository, then push again",
        )
    return commit.commit_url


def _checked(path: Path) -> Artifact:
    """The artifact, complete: every file that the model needs, and a ledger of every owner."""
    artifact = read_artifact(path)
    if artifact.kind != KIND:
        raise ArtifactError(
            f"{path} is no unified model with a ledger, and only such a model is published.",
            got=artifact.kind,
            expected=KIND,
            do="unify contributions (`collegium unify`); anything else can be uploaded with `hf upload`",
        )
    try:
        needed = {CONFIG, CARD, LEDGER, FACTS, *_weights(artifact)}
        if FACTS in artifact.files and json.loads((path / FACTS).read_bytes())["task"] not in CAUSAL:
            needed.add(CLASSES)  # the choices of a decoder have no embeddings
        missing = sorted(name for name in needed if name not in artifact.files)
        if missing:
            raise ArtifactError(f"{path} is not complete: its manifest lacks {', '.join(missing)}.")
        owners = set(json.loads((path / CONFIG).read_bytes())["expert_names"])
        ledger = json.loads((path / LEDGER).read_bytes())
        told = {owner for owner, entries in ledger.items() if entries}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{path} cannot be read.", got=str(error)[:200]) from None
    if told != owners:
        raise ArtifactError(
            f"The ledger of {path} does not tell what left each owner.",
            got=f"entries of {', '.join(sorted(told)) or 'nobody'}",
            expected=f"entries of {', '.join(sorted(owners))}",
            do="unify the contributions again",
        )
    return artifact


def _weights(artifact: Artifact) -> list[str]:
    """The weight files that the model must have: one, or an index and its shards."""
    if INDEX not in artifact.files:
        return [WEIGHTS]
    return [INDEX, *json.loads((artifact.path / INDEX).read_bytes())["weight_map"].values()]


@contextmanager
def _hub_errors(api: HfApi, repository: str) -> Iterator[None]:
    try:
        yield
    except HFValidationError as error:
        raise InputError(
            "The name of the repository is wrong.", got=repository, expected=f"OWNER/NAME ({error})"
        ) from None
    except OfflineModeIsEnabled:
        raise InputError(
            "The hub may not be reached: HF_HUB_OFFLINE is set.", do="unset it and run the same command again"
        ) from None
    except LocalTokenNotFoundError:
        raise InputError("There is no token for the hub.", do=LOG_IN) from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise InputError(
                f"The hub refused {'the token' if get_token() else 'an upload without a token'}.",
                got=f"{api.endpoint} answered {status} for {repository}",
                do=LOG_IN,
            ) from None
        raise RunError(
            f"{api.endpoint} did not take {repository}.", got=error.server_message or str(error).splitlines()[0]
        ) from None
    except (HTTP_ERROR, OSError, RuntimeError) as error:  # the last from the upload of large files
        raise RunError(
            f"{api.endpoint} cannot be reached.",
            got=(str(error) or type(error).__name__).splitlines()[0],
            do="check the network, and HF_ENDPOINT where it is set; then run the same command again",
        ) from None
