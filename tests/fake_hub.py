"""A model hub on loopback that takes commits as the real one does, for the tests of `push`.

Only small files are asked for (`uploadMode: regular`), so what the real hub does with large ones is not tested here.
"""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_writes_here"


@dataclass
class FakeHub:
    """What the hub holds: repository → branch → path → content, and which repositories are private."""

    url: str = ""
    repositories: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    drops: set[str] = field(default_factory=set)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, object]:
        if (method, path) == ("POST", "/api/repos/create"):
            return self._create(json.loads(body))
        if (method, path) == ("POST", "/api/validate-yaml"):
            return 200, {"errors": [], "warnings": []}
        owner, name, *rest = path.removeprefix("/api/models/").split("/")
        repository = f"{owner}/{name}"
        branches = self.repositories[repository]
        answer: tuple[int, object] = 404, {"error": f"{method} {path} is not there"}
        match [method, *rest]:
            case ["GET"]:
                answer = 200, {"id": repository, "private": self.private[repository]}
            case ["POST", "branch", branch] if branch in branches:
                answer = 409, {"error": "exists"}
            case ["POST", "branch", branch]:
                branches[branch] = dict(branches["main"])
                answer = 200, {}
            case ["GET", "tree", branch]:
                answer = 200, [{"type": "file", "path": path, "size": 0, "oid": "0"} for path in branches[branch]]
            case ["POST", "preupload", _]:
                paths = [file["path"] for file in json.loads(body)["files"]]
                files = [{"path": p, "uploadMode": "regular", "shouldIgnore": p in self.drops} for p in paths]
                answer = 200, {"files": files}
            case ["POST", "commit", branch]:
                answer = 200, self._commit(repository, branches[branch], body)
        return answer

    def _create(self, asked: dict) -> tuple[int, object]:
        repository = f"{asked['organization']}/{asked['name']}"
        if repository in self.repositories:
            return 409, {"error": "exists", "url": f"{self.url}/{repository}"}
        self.repositories[repository] = {"main": {".gitattributes": b""}}
        self.private[repository] = asked.get("visibility") == "private"
        return 200, {"url": f"{self.url}/{repository}"}

    def _commit(self, repository: str, files: dict[str, bytes], body: bytes) -> object:
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "deletedFile":
                del files[line["value"]["path"]]
        return {"commitUrl": f"{self.url}/{repository}/commit/{'a' * 40}", "commitOid": "a" * 40, "hookOutput": ""}


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A hub that answers as long as the block runs."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            self._answer("POST")

        def _answer(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = b"".join(iter(self._chunk, b""))
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(f"{method} {path}")
            allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            status, content = hub.answer(method, path, body) if allowed else (401, {"error": "Invalid credentials"})
            raw = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def _chunk(self) -> bytes:
            content = self.rfile.read(int(self.rfile.readline(), 16))
            self.rfile.readline()
            return content

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
