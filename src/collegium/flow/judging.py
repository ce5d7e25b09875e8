"""How well clients are answered: those that never trained, or every client on examples of its own that it held back."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from collegium.federated.algorithms.ddome import Ddome
from collegium.federated.client_state import ClientStates
from collegium.federated.label_prior import with_label_prior
from collegium.federated.protocol import Algorithm, Arrays, ClientData
from collegium.flow.federation import Federation

Asked = tuple[ClientData, Arrays]  # examples, and what their client made for itself


def judge_federation(algorithm: Algorithm, federation: Federation, states: ClientStates) -> dict[str, Any]:
    """What `judge` finds: of unseen clients, or, where clients hold examples back, of those that trained.

    There unseen clients are newcomers, who tune the model for themselves though they never took part:
    `accuracy_of_newcomers`.
    """
    if federation.asked is None:
        return judge(algorithm, ((federation.of(client), {}) for client in federation.judges))

    def personal(clients: Sequence[int]) -> Iterable[Asked]:
        for client in clients:
            own = algorithm.personalise(client, federation.of(client), states.latest(client))
            yield federation.asked_of(client), own

    newcomers = judge(algorithm, personal(federation.judges))
    return judge(algorithm, personal(federation.training)) | {"accuracy_of_newcomers": newcomers["accuracy"]}


def judge(algorithm: Algorithm, clients: Iterable[Asked]) -> dict[str, Any]:
    """Accuracy of clients: their mean, all their examples together (`global`), each client, and the use of the experts.

    `accuracy` answers each example as the algorithm does, `accuracy_with_prior` all of a client's together, under the
    prior of the labels that they suggest (label_prior.py); neither looks at a label. `accuracy_with_true_prior` is told
    the client's class shares: no method, but about what one that reads the batch for its prior can hope for.
    """
    right, with_prior, with_true_prior, use, correct = [], [], [], [], []
    for data, own in clients:
        answers = algorithm.predict(data, own)
        correct.append(answers.argmax(axis=1) == data.labels)
        right.append(float(correct[-1].mean()))
        with_prior.append(float((with_label_prior(answers).argmax(axis=1) == data.labels).mean()))
        shares = np.bincount(data.labels, minlength=answers.shape[1]) / len(data)
        told = answers + np.log(np.maximum(shares, np.finfo(np.float64).tiny))
        with_true_prior.append(float((told.argmax(axis=1) == data.labels).mean()))
        use.append(algorithm.utilisation(data) if isinstance(algorithm, Ddome) else np.ones(1))
    return {
        "accuracy": float(np.mean(right)),
        "accuracy_with_prior": float(np.mean(with_prior)),
        "accuracy_with_true_prior": float(np.mean(with_true_prior)),
        "global_accuracy": float(np.concatenate(correct).mean()),
        "by_client": right,
        "by_client_with_prior": with_prior,
        "utilisation": np.mean(use, axis=0).tolist(),
    }
