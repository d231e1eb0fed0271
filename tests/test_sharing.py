"""Sharing a policy: the card, the folder, and the Hugging Face Hub, by its real client and a server on this machine."""

from __future__ import annotations

import base64
import getpass
import hashlib
import json
import re
import shlex
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import implicitq
from implicitq import configs
from implicitq.commands import main as cli
from implicitq.commands.parsing import parse_with_config
from implicitq.commands.train import Options as TrainOptions
from implicitq.types import InputError

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


yaml = pytest.importorskip("yaml")
constants = pytest.importorskip("huggingface_hub.constants")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A finished run on a task of Gymnasium's own, which others can make too."""
    from toys import SMALL

    folder = tmp_path_factory.mktemp("sharing") / "run"
    with implicitq.make("miq", "Pendulum-v1", **SMALL) as agent:
        agent.learn(out=folder)
    return folder


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[Hub]:
    with serve() as made:
        monkeypatch.setattr(constants, "ENDPOINT", made.url)  # where HF_ENDPOINT lands when the client is imported
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", made.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        yield made


def push(*words: object) -> int:
    return cli.run(["push", *map(str, words), "--episodes", "2", "--no-video"])


def front_matter(card: str) -> dict:
    return yaml.safe_load(card.split("---\n")[1])


def test_a_policy_goes_to_the_hub_and_comes_back_the_same(run, hub, capsys):
    assert push(run, "me/pendulum") == 0
    told = capsys.readouterr().out
    assert 'implicitq.load("hf://me/pendulum")' in told
    there = hub.repositories["me/pendulum"]
    files = there.commits[there.head]
    assert set(files) == {
        *("README.md", "policy.safetensors", "config.json", "versions.json"),
        *("evaluations.csv", "metrics.csv", "curve.png"),
    }
    assert files["policy.safetensors"] == (run / "policy.safetensors").read_bytes()
    here, loaded = implicitq.load(run), implicitq.load("hf://me/pendulum")
    rows = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_array_equal(
        here.predict(rows, deterministic=True)[0], loaded.predict(rows, deterministic=True)[0]
    )
    assert loaded.step == here.step == 120


def test_the_best_policy_is_pushed_when_asked_for_and_an_earlier_commit_stays_loadable(run, hub):
    assert push(run, "me/pendulum") == 0
    first = hub.repositories["me/pendulum"].head
    hub.repositories["me/pendulum"].commits[first]["replay.gif"] = b"of the policy before"
    hub.repositories["me/pendulum"].commits[first]["notes.md"] = b"of the owner"
    assert push(run, "me/pendulum", "--best") == 0
    there = hub.repositories["me/pendulum"]
    assert there.commits[there.head]["policy.safetensors"] == (run / "best.safetensors").read_bytes()
    assert "replay.gif" not in there.commits[there.head]
    assert there.commits[there.head]["notes.md"] == b"of the owner"
    assert implicitq.load("hf://me/pendulum").step == implicitq.load(run, best=True).step
    assert implicitq.load(f"hf://me/pendulum@{first}").step == 120
    with pytest.raises(InputError, match="push --best shares it"):
        implicitq.load("hf://me/pendulum", best=True)


def test_what_was_fetched_is_there_without_the_hub(run, hub, monkeypatch):
    assert push(run, "me/pendulum") == 0
    implicitq.load("hf://me/pendulum")
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert implicitq.load("hf://me/pendulum").step == 120
    assert hub.requests == []


def test_commands_take_a_policy_on_the_hub(run, hub, capsys, tmp_path, monkeypatch):
    assert push(run, "me/pendulum") == 0
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    assert cli.run(["evaluate", "hf://me/pendulum", "--episodes", "2", "--seed", "10000", "--json"]) == 0
    played = json.loads(capsys.readouterr().out)
    there = hub.repositories["me/pendulum"]
    card = there.commits[there.head]["README.md"].decode()
    assert f"| this policy, in fresh episodes (seed 10000) | {played['mean']:,.1f} |" in card
    assert "implicitq evaluate hf://me/pendulum --episodes 2 --seed 10000" in card


def test_a_private_repository_is_private_and_a_public_one_is_not_taken_for_it(run, hub, capsys, monkeypatch):
    assert push(run, "me/secret", "--private") == 0
    assert hub.repositories["me/secret"].private
    hub.repositories["me/open"] = Repository()
    assert push(run, "me/open", "--private") == 2
    assert "me/open is there already and public" in capsys.readouterr().err
    assert not hub.repositories["me/open"].commits
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    with pytest.raises(InputError, match="there is no me/secret on the Hub, or it is private and not for you"):
        implicitq.load("hf://me/secret")


def test_what_goes_wrong_with_the_hub_is_one_sentence(run, hub, capsys, monkeypatch, tmp_path):
    hub.repositories["me/text"] = Repository()
    hub.repositories["me/text"].commit({"README.md": b"hello"})
    for address, sentence in {
        "hf://me/none": "there is no me/none on the Hub",
        "hf://me/text": "me/text has no policy.safetensors, so it is no policy of implicitq",
        "hf://me/text@v9": "me/text has no revision 'v9'",
        "hf://me": "an address on the Hub is hf://owner/name",
        "hf://me/text/../../x": "an address on the Hub is hf://owner/name",
    }.items():
        with pytest.raises(InputError, match=sentence):
            implicitq.load(address)
    assert push(tmp_path, "me/x") == 2
    assert "is not a run folder" in capsys.readouterr().err
    assert push(run, "nobody") == 2
    assert "a repository of the Hub is named owner/name, got 'nobody'" in capsys.readouterr().err
    assert push(run, "others/x") == 2
    assert "the Hub answered with 403" in capsys.readouterr().err
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert push(run, "me/x") == 2
    error = capsys.readouterr().err
    assert "the Hub answered with 401" in error
    assert "hf_wrong" not in error
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    assert push(run, "me/x") == 2
    assert "the Hub wants to know who you are; log in with: hf auth login" in capsys.readouterr().err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="the Hub cannot be reached, and me/other was not fetched before"):
        implicitq.load("hf://me/other")


def test_a_missing_client_is_named_with_its_extra(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"pip install 'implicitq\[hub\]'"):
        implicitq.load("hf://me/x")


def test_a_file_from_the_hub_is_checked_like_any_other(run, hub):
    hostile = hub.repositories["me/hostile"] = Repository()
    hostile.commit({"policy.safetensors": b"\x80\x04cos\nsystem\n(S'touch /tmp/owned'\ntR."})
    with pytest.raises(InputError, match="is not a file of implicitq, or is damaged"):
        implicitq.load("hf://me/hostile")
    altered = bytearray((run / "policy.safetensors").read_bytes())
    altered[-1] ^= 1
    hostile.commit({"policy.safetensors": bytes(altered)})
    with pytest.raises(InputError, match="its checksum is wrong"):
        implicitq.load("hf://me/hostile")
    hub.size_told = 10 << 30
    hostile.commit({"policy.safetensors": b"small"})
    with pytest.raises(InputError, match=r"is 10\.7 GB large; at most 4 GB are fetched"):
        implicitq.load("hf://me/hostile")


def test_a_policy_from_the_hub_does_not_choose_which_module_runs(hub, tmp_path, monkeypatch, small):
    (tmp_path / "canary.py").write_text(
        'import gymnasium\nfrom toys import Toy\ngymnasium.register("Canary-v0", Toy)\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    with implicitq.make("miq", "canary:Canary-v0", **small) as agent:
        agent.learn(40, out=tmp_path / "run")
    assert push(tmp_path / "run", "me/canary", "--env", "canary:Canary-v0") == 0
    sys.modules.pop("canary")
    gymnasium.registry.pop("Canary-v0")
    agent = implicitq.load("hf://me/canary")
    assert agent.predict(np.zeros(3), deterministic=True)[0].shape == (2,)
    with pytest.raises(InputError, match="which would run the module 'canary'"):
        agent.evaluate(1)
    assert "canary" not in sys.modules


def test_a_push_to_a_folder_is_the_same_without_a_network(run, tmp_path, capsys):
    shared = tmp_path / "shared"
    assert push(run, "me/pendulum", "--out", shared) == 0
    assert implicitq.load(shared).step == 120
    assert implicitq.load(shared / "policy.safetensors").step == 120
    (shared / "replay.mp4").write_bytes(b"of the policy before")
    assert push(run, "me/pendulum", "--best", "--out", shared) == 0
    assert not (shared / "replay.mp4").exists()
    (shared / "diary.txt").write_text("mine")
    assert push(run, "me/pendulum", "--out", shared) == 2
    assert "holds other things than a shared policy" in capsys.readouterr().err


def test_a_film_is_shared_if_it_can_be_made_and_missed_in_a_sentence_if_not(run, tmp_path, monkeypatch, capsys):
    pytest.importorskip("pygame")
    words = ["push", str(run), "me/pendulum", "--episodes", "0", "--out", str(tmp_path / "shared")]
    assert cli.run(words) == 0
    assert len([path for path in (tmp_path / "shared").iterdir() if path.stem == "replay"]) == 1

    def fails(*_, **__):
        raise InputError("no pictures in /home/somebody/envs")

    monkeypatch.setattr("implicitq.video.record", fails)
    capsys.readouterr()
    assert cli.run(words) == 0
    assert "left out: a film: no pictures in /home/somebody/envs" in capsys.readouterr().out
    card = (tmp_path / "shared" / "README.md").read_text()
    assert "There is no film" in card
    assert "somebody" not in card


def test_nothing_that_is_shared_names_the_machine_or_the_user(run, tmp_path):
    (run / "versions.json").write_text(
        json.dumps({**json.loads((run / "versions.json").read_text()), "host": "secret-host", "jax": "0.9"})
    )
    assert push(run, "me/pendulum", "--out", tmp_path / "shared") == 0
    content = b"\n".join(path.read_bytes() for path in (tmp_path / "shared").iterdir())
    names = {name for name in (getpass.getuser(), socket.gethostname()) if len(name) > 4}  # others turn up by chance
    for secret in {str(run), str(Path.home()), "secret-host", *names}:
        assert secret.encode() not in content, secret


def test_the_card_says_what_the_hub_needs_to_know(run, tmp_path):
    from huggingface_hub import ModelCard

    assert cli.run(["card", str(run), "--repo", "me/pendulum", "--episodes", "3", "--out", str(tmp_path / "c.md")]) == 0
    card = ModelCard.load(tmp_path / "c.md")
    assert card.data.library_name == "implicitq"
    assert {"reinforcement-learning", "miq", "Pendulum-v1"} <= set(card.data.tags)
    (result,) = card.data.eval_results
    played = implicitq.load(run).evaluate(3, seed=10_000)
    assert result.metric_value == f"{played.mean:.2f} +/- {played.std:.2f}"
    assert (result.dataset_name, result.metric_type) == ("Pendulum-v1", "mean_reward")
    assert 'implicitq.load("hf://me/pendulum")' in card.text


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("miq", {}),
        ("iq", {"seed": 3, "hidden": (32, 16), "normalize_observations": True, "actor_average": 0.01}),
        ("iq", {"kl": 0.05, "temperature": 0.1}),
        ("iq-auto", {"members": 3, "max_temperature": None}),
        ("miq-auto", {"adam_b1": 0.9}),  # known from earlier versions, and no longer offered
        ("sac", {"preset": "none", "entropy_target": -0.5}),
    ],
)
def test_the_command_on_the_card_trains_with_the_same_config(algorithm, settings):
    config = configs.resolve(algorithm, "Pendulum-v1", **settings)
    words = shlex.split(configs.train_command(config))
    assert words[:2] == ["implicitq", "train"]
    assert parse_with_config(TrainOptions, "train", "Train", "Pendulum-v1", words[2:]).config == config


def test_names_in_a_card_are_never_markup():
    from implicitq.card import Facts, card

    nasty = 'x`|<script>alert(1)</script>](http://evil)\n---\n"a: b" {{@all}}-v0'
    config = configs.resolve("iq", "Toy-v0")
    object.__setattr__(config, "env", nasty)
    done = implicitq.Evaluation((1.0, 2.0), (5, 6), 10)
    text = card(Facts(config, 10, False, [done], done, 7, {"jax": "`<b>"}, branches=["from step 4 `with` <i>"]))
    tags = front_matter(text)["tags"]
    assert any("<script>" in tag for tag in tags)  # as a string, whole
    assert len(text.split("---\n")) == 3
    for line in text.split("---\n", 2)[2].splitlines():
        if "<" in line and not line.startswith("implicitq "):  # a line of a code block
            assert all("<" not in part for part in line.split("`")[::2]), line
