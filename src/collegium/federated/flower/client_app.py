"""The client's side under Flower: who are you, a question, a task.

A client's errors stay with it: their texts may quote its data, and Flower would send them to the server.
"""

import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from flwr.app import ConfigRecord, Context, Error, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from collegium.federated.flower.records import from_records, head_of, to_records
from collegium.federated.protocol import Message

WHO = "query"
TYPES = {"question": "query.question", "task": "train.task"}  # kind → Flower's message type
PROFILE = "profile"


@dataclass(frozen=True)
class Member:
    """A client on its node.

    Attributes:
        client: its stable number; a node's own number is another one in every run.
        features: length of its feature vectors.
        shape: of one input of an expert.
        settings: hash of what it has agreed to.
        answer: its work, from (kind, message) to reply.
    """

    client: int
    features: int
    shape: tuple[int, ...]
    settings: str
    answer: Callable[[str, Message], Message]


MemberOf = Callable[[Mapping[str, object], str], Member]  # (the node's configuration, name of the run) → member


def make_client_app(member_of: MemberOf, explain: bool) -> ClientApp:
    """The app that a node runs for every message.

    Args:
        member_of: finds the node's client; what it holds travels to the workers of a simulation.
        explain: tell the server why a client failed; for simulations, where nothing is private.
    """
    app = ClientApp()
    app.query()(partial(_guarded, member_of, explain, None))
    app.query("question")(partial(_guarded, member_of, explain, "question"))
    app.train("task")(partial(_guarded, member_of, explain, "task"))
    return app


def _guarded(
    member_of: MemberOf, explain: bool, kind: str | None, message: FlowerMessage, context: Context
) -> FlowerMessage:
    """The reply; after any error one that says no more than that there was one."""
    try:
        member = member_of(context.node_config, str(head_of(message.content)["experiment"]))
        reply = _profile(member) if kind is None else _answer(member, kind, message)
        return FlowerMessage(reply, reply_to=message)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        reason = f"{type(error).__name__}: {error}" if explain else "its own log says why"
        return FlowerMessage(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def _profile(member: Member) -> RecordDict:
    profile = ConfigRecord({"client": member.client, "features": member.features, "settings": member.settings})
    profile["shape"] = list(member.shape)
    return RecordDict({PROFILE: profile})


def _answer(member: Member, kind: str, message: FlowerMessage) -> RecordDict:
    reply = member.answer(kind, from_records(message.content, member.client))
    return to_records(reply)
