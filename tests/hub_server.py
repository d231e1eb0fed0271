"""A stub of the Hugging Face Hub's HTTP interface on this machine: as much of it as its real client asks for."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_" + "x" * 34


@dataclass
class Repository:
    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)  # id -> files, oldest first
    messages: list[str] = field(default_factory=list)

    @property
    def head(self) -> str:
        return next(reversed(self.commits))

    def commit(self, files: dict[str, bytes], message: str = "") -> str:
        name = hashlib.sha1(f"{len(self.commits)}".encode()).hexdigest()
        self.commits[name] = files
        self.messages.append(message)
        return name


class Hub:
    """What the server holds; tests look at it and change it."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.url = ""
        self.size_told: int | None = None  # of files, instead of the true one


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *words: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._file()

    def do_GET(self) -> None:
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/?]+))?", self.path)
        self.hub.requests.append(f"{self.command} {self.path}")
        if found is None:
            self._file()
            return
        repository = self._repository(found[1])
        if repository is not None:
            names = repository.commits[repository.head] if repository.commits else {}
            siblings = [{"rfilename": name} for name in names]
            about = {"id": found[1], "private": repository.private, "siblings": siblings}
            self._send(200, about | ({"sha": repository.head} if repository.commits else {}))

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.hub.requests.append(f"{self.command} {self.path}")
        if self.path == "/api/validate-yaml":
            self._send(200, {"errors": [], "warnings": []})
        elif self.headers.get("authorization") != f"Bearer {TOKEN}":
            self._send(401, {"error": "Invalid username or password."})
        elif self.path == "/api/repos/create":
            self._create(json.loads(content))
        elif "/preupload/" in self.path:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(content)["files"]
            ]
            self._send(200, {"files": files})
        elif "/commit/" in self.path:
            self._commit(self.path.split("/commit/")[0].removeprefix("/api/models/"), content)
        else:
            self._send(404, {"error": "unknown"})

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if asked["organization"] == "others":
            self._send(403, {"error": "You don't have the rights to create a model under this namespace"})
            return
        if name in self.hub.repositories:
            self._send(409, {"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"})
            return
        self.hub.repositories[name] = Repository(private=asked.get("visibility") == "private")
        self._send(200, {"url": f"{self.hub.url}/{name}"})

    def _commit(self, name: str, content: bytes) -> None:
        repository = self.hub.repositories[name]
        lines = [json.loads(line) for line in content.splitlines()]
        files = dict(repository.commits[repository.head]) if repository.commits else {}
        for line in lines:
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "deletedFile":
                del files[line["value"]["path"]]
        made = repository.commit(files, lines[0]["value"]["summary"])
        self._send(200, {"commitUrl": f"{self.hub.url}/{name}/commit/{made}", "commitOid": made})

    def _file(self) -> None:
        """/owner/name/resolve/REVISION/FILE, where a revision is main or a commit."""
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)
        repository = None if found is None else self._repository(found[1])
        if found is None or repository is None:
            return
        commit = repository.head if found[2] == "main" else found[2]
        if commit not in repository.commits:
            self._send(404, {}, {"X-Error-Code": "RevisionNotFound"})
        elif found[3] not in repository.commits[commit]:
            self._send(404, {}, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        else:
            content = repository.commits[commit][found[3]]
            marks = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": commit}
            self._send(200, content, marks)

    def _repository(self, name: str) -> Repository | None:
        found = self.hub.repositories.get(name)
        allowed = found is not None and (not found.private or self.headers.get("authorization") == f"Bearer {TOKEN}")
        if not allowed:
            self._send(401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        return found if allowed else None

    def _send(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        told = self.hub.size_told if isinstance(answer, bytes) and self.hub.size_told is not None else len(content)
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(told)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def serve() -> Iterator[Hub]:
    """A hub on 127.0.0.1, until the end of the block."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
