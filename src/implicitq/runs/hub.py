"""The Hugging Face Hub: one policy file down, the files of a run up. The only file that knows its client.

What comes down is a file of a stranger. It is plain data, it is read by `policy_file` like any other, and nothing else
of the repository is fetched: loading a policy from the Hub runs no code.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from implicitq.runs.layout import POLICY
from implicitq.types import InputError
from implicitq.validation import brief

SCHEME = "hf://"
_LARGEST = 4 << 30  # bytes of a policy file; usual ones have a few million
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_ADDRESS = re.compile(rf"{SCHEME}(?P<repo>{_REPOSITORY.pattern})(?:@(?P<revision>[\w./-]{{1,200}}))?", re.ASCII)


def is_address(source: Any) -> bool:
    return isinstance(source, str) and source.startswith(SCHEME)


def check_repository(name: str) -> str:
    """The name, if a repository of the Hub can have it."""
    if _REPOSITORY.fullmatch(name) is None:
        raise InputError(f"a repository of the Hub is named owner/name, got {brief(name)}")
    return name


def fetch_policy(address: str) -> Path:
    """The policy file of `hf://owner/name` or `hf://owner/name@revision`; fetched once, then in the client's cache."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise InputError(f"an address on the Hub is hf://owner/name or hf://owner/name@revision, got {brief(address)}")
    repo, revision = found["repo"], found["revision"]
    hub = _client()
    with _told(repo, revision):
        about = hub.HfApi().hf_hub_download(repo, POLICY, revision=revision, dry_run=True)
        if about.file_size is None or about.file_size > _LARGEST:
            size = "of unknown size" if about.file_size is None else f"{about.file_size / 1e9:,.1f} GB large"
            raise InputError(f"{POLICY} of {repo} is {size}; at most {_LARGEST >> 30} GB are fetched")
        return Path(hub.HfApi().hf_hub_download(repo, POLICY, revision=revision))


def require_login() -> None:
    """Refuse, before any work, what would fail for want of a token."""
    with _told("", None):
        hub = _client()
        if hub.get_token() is None:
            raise hub.errors.LocalTokenNotFoundError


def upload(repo: str, files: Mapping[str, bytes], known: Collection[str], message: str, private: bool = False) -> str:
    """Make the repository if it is not there, and put the files into it in one commit; gives the commit's address.

    Of the names in `known`, those that are in the repository and not among the files are removed: they are of the
    policy that was there before.
    """
    check_repository(repo)
    hub = _client()
    api = hub.HfApi()
    with _told(repo, None):
        api.create_repo(repo, private=private or None, exist_ok=True)
        there = api.repo_info(repo)
        if private and not there.private:
            raise InputError(f"{repo} is there already and public; make it private on the Hub, or choose another name")
        stale = {file.rfilename for file in there.siblings or []} & (set(known) - set(files))
        commit = [hub.CommitOperationAdd(name, content) for name, content in files.items()]
        commit += [hub.CommitOperationDelete(name) for name in sorted(stale)]
        return str(api.create_commit(repo, commit, commit_message=message).commit_url)


def _client() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError:
        raise InputError("the Hugging Face Hub needs a package that is missing; pip install 'implicitq[hub]'") from None
    return huggingface_hub


@contextmanager
def _told(repo: str, revision: str | None) -> Iterator[None]:
    """What went wrong on the way to the Hub, as one sentence."""
    errors = _client().errors
    login = "log in with: hf auth login, or set HF_TOKEN"
    try:
        yield
    except InputError:
        raise
    except errors.LocalTokenNotFoundError:
        raise InputError(f"the Hub wants to know who you are; {login}") from None
    except errors.GatedRepoError:
        raise InputError(f"{repo} is only for those whom its owner has let in; ask for access on the Hub") from None
    except errors.RepositoryNotFoundError:
        raise InputError(f"there is no {repo} on the Hub, or it is private and not for you; {login}") from None
    except errors.RevisionNotFoundError:
        raise InputError(f"{repo} has no revision {brief(revision)}") from None
    except errors.LocalEntryNotFoundError as error:  # no answer, and nothing in the cache of the client
        raise InputError(f"the Hub cannot be reached, and {repo} was not fetched before{_cause(error)}") from None
    except errors.EntryNotFoundError:
        raise InputError(f"{repo} has no {POLICY}, so it is no policy of implicitq") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        hint = f"; {login}" if status in (401, 403) else ""
        raise InputError(f"the Hub answered with {status}: {_line(error.server_message)}{hint}") from None
    except ConnectionError as error:  # offline on purpose, too
        raise InputError(f"the Hub cannot be reached: {_line(error)}") from None
    except ValueError as error:
        raise InputError(f"the Hub or its client does not take this: {_line(error)}") from None
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("httpx", "httpx2", "httpcore", "huggingface_hub"):
            raise
        raise InputError(f"the Hub cannot be reached: {_line(error)}") from None


def _cause(error: BaseException) -> str:
    return "" if error.__cause__ is None else f": {_line(error.__cause__)}"


def _line(text: Any) -> str:
    """The first line of a message, shortened."""
    lines = str(text or "no reason given").strip().splitlines()
    return lines[0][:200] if lines else "no reason given"
