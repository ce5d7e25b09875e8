"""A Flower grid in one process: messages are serialised as on the wire, and every node runs a `ClientApp` at once."""

import uuid

from flwr.app import Context, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class OneProcessGrid(Grid):
    """Nodes are (number → app, its configuration); change `nodes` and they come and go.

    Replies of nodes in `held` are on their way until it is changed.
    """

    def __init__(self, nodes):
        self.nodes, self.replies, self.sent, self.held = dict(nodes), {}, [], set()
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID

    set_run = create_message = send_and_receive = run = None  # the engine uses none of them

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        names = []
        for message in messages:
            name = uuid.uuid4().hex
            message.metadata.__dict__["_message_id"] = name
            message.content = recorddict_from_proto(recorddict_to_proto(message.content))
            self.sent.append(message)
            names.append(name)
            app, config = self.nodes[message.metadata.dst_node_id]
            if app is None:  # a node that never answers
                continue
            context = Context(1, message.metadata.dst_node_id, config, RecordDict(), {})
            self.replies[name] = app(message, context)
        return names

    def pull_messages(self, message_ids):
        here = {name for name, reply in self.replies.items() if reply.metadata.src_node_id not in self.held}
        return [self.replies.pop(name) for name in message_ids if name in here]
