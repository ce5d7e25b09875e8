"""What a client keeps between rounds: control variates, private gates, personal heads. It never enters a message.

A file for each client and round in the client's own folder. The state of a round is used by later rounds only: a
server that was killed and asks for the same round again gets the same answer as the first time.
"""

from pathlib import Path

from safetensors.numpy import load, save

from collegium.core.artifacts import write_file
from collegium.federated.protocol import Arrays

KEPT = 2  # rounds: the last one may be asked for again


class ClientStates:
    """Private states of clients, on disk: memory does not grow with their number."""

    def __init__(self, folder: Path):
        self.folder = folder

    def before(self, client: int, server_round: int) -> Arrays:
        """What the client kept of its last round before this one; empty where there is none."""
        earlier = [number for number in self._rounds(client) if number < server_round]
        return load(self._path(client, earlier[-1]).read_bytes()) if earlier else {}

    def latest(self, client: int) -> Arrays:
        """What the client kept of its last round."""
        rounds = self._rounds(client)
        return self.before(client, rounds[-1] + 1) if rounds else {}

    def keep(self, client: int, server_round: int, state: Arrays) -> None:
        """Keep what the client has after this round; an empty state is none."""
        if not state:
            return
        path = self._path(client, server_round)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        write_file(path, save(dict(sorted(state.items()))))
        for number in self._rounds(client)[:-KEPT]:
            self._path(client, number).unlink(missing_ok=True)

    def _rounds(self, client: int) -> list[int]:
        return sorted(int(path.stem) for path in (self.folder / str(client)).glob("[0-9]*.safetensors"))

    def _path(self, client: int, server_round: int) -> Path:
        return self.folder / str(client) / f"{server_round}.safetensors"
