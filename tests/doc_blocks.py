"""The code blocks of README and docs, and how each of them is tried. `python tests/doc_blocks.py` counts them.

The blocks of a page run from top to bottom, in one Python namespace and one folder. A comment before a block, which is
invisible on the page, says what the page need not show:

    <!-- not run: needs a cluster -->        the block is not run; commands of ours in it are parsed all the same
    <!-- setup: observation = ... -->        Python that runs first, on one line or several

A Python block that begins with a comment such as `# hills.py` is also a file of that name, whose names the blocks after
it see.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parent.parent
_DOCS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", *_DOCS, "benchmarks/README.md"]

SHORT = ("resume", "evaluate", "plot")  # commands of ours that are quick where runs are small
SMALL_TASKS = ("CartPole-v1", "Pendulum-v1")  # `train` on these, and on tasks that a page makes itself, is run too
PLAIN = ("text", "toml", "diff", "bibtex")  # blocks that nobody types into anything
_COMMENT = re.compile(r"<!-- (not run|setup):\s(.*?)\s*-->", re.DOTALL)
_FENCE = re.compile(r"( *)```(\S*).*")
_INLINE = re.compile(r"`(implicitq\s[^`]+)`")
_PLACEHOLDER = re.compile(r"[\[|]|\.\.\.|\b[A-Z][A-Z_]*\b")  # of a command that is described, such as DIR or [--best]

Trial = Literal["run", "parsed", "marked", "plain"]


@dataclass(frozen=True)
class Block:
    page: str
    line: int  # of its first line of text, from 1
    language: str  # as after the fence; `setup` for code in a comment
    text: str
    not_run: str | None = None  # why

    @property
    def place(self) -> str:
        return f"{self.page}, line {self.line}"

    @property
    def module(self) -> str | None:
        """Of a block that is a file: its name, without .py."""
        named = re.match(r"# (\w+)\.py\n", self.text)
        return named[1] if named else None

    @property
    def trial(self) -> Trial:
        """All of it is run, its commands are at least parsed, it is marked, or there is nothing to run in it."""
        if self.language in ("setup", *PLAIN) or self.language.startswith("{"):
            return "plain"
        if self.not_run is not None:
            return "marked"
        if self.language == "sh" and not all(is_short(words) for words in commands(self.text)):
            return "parsed"
        return "run"


def is_short(command: list[str]) -> bool:
    """Whether it is run, not only parsed."""
    if command[0] != "implicitq" or "--help" in command:
        return False
    task = command[command.index("--env") + 1] if "--env" in command else SMALL_TASKS[0]
    return command[1] in SHORT or (command[1] == "train" and (task in SMALL_TASKS or ":" in task))


def ours(command: list[str]) -> list[str] | None:
    """The arguments of `implicitq`, also where another program starts it, such as srun; None of other commands."""
    found = "implicitq" in command and command[0] != "pip"
    return command[command.index("implicitq") + 1 :] if found else None


def commands(text: str) -> list[list[str]]:
    """The words of every command of a shell block, without what only stands before it: variables, taskset."""
    found: list[list[str]] = [[]]
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;")
        lexer.whitespace_split = True
        for word in [*lexer, ";"]:
            if set(word) <= set("&|;"):
                found.append([])
            else:
                found[-1].append(word)
    return [words for words in map(_bare, found) if words]


def _bare(words: list[str]) -> list[str]:
    while words and re.fullmatch(r"\w+=.*", words[0]):
        words = words[1:]
    return words[3:] if words[:2] == ["taskset", "-c"] else words


def blocks(page: str) -> list[Block]:
    """Everything between fences on a page, and code in comments, in order."""
    found: list[Block] = []
    not_run: str | None = None
    lines = (ROOT / page).read_text().splitlines()
    number = 0
    while number < len(lines):
        fence = _FENCE.fullmatch(lines[number])
        if fence:
            end = next(n for n in range(number + 1, len(lines)) if lines[n] == f"{fence[1]}```")
            text = "\n".join(line.removeprefix(fence[1]) for line in lines[number + 1 : end])
            found.append(Block(page, number + 2, fence[2], text, not_run))
            number, not_run = end, None
        elif lines[number].startswith("<!-- "):
            end = next(n for n in range(number, len(lines)) if lines[n].endswith("-->"))
            comment = _COMMENT.fullmatch("\n".join(lines[number : end + 1]))
            if comment and comment[1] == "not run":
                not_run = comment[2]
            elif comment:
                found.append(Block(page, number + 1 + (end > number), "setup", comment[2]))
            number = end
        number += 1
    return found


def inline_commands(page: str) -> list[list[str]]:
    """Commands of ours in running text that could be typed as they stand."""
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    found = [" ".join(words.split()) for words in _INLINE.findall(text)]
    typed = [shlex.split(words) for words in found if not _PLACEHOLDER.search(words)]
    return [words for words in typed if len(words) > 2]  # `implicitq collect` alone is only a name


def main() -> None:
    print(f"{'page':28}{'run':>8}{'parsed':>8}{'marked':>8}{'inline':>8}")
    total: Counter[str] = Counter()
    for page in PAGES:
        count = Counter(block.trial for block in blocks(page))
        count["inline"] = len(inline_commands(page))
        total += count
        print(f"{page:28}" + "".join(f"{count[name]:8}" for name in ("run", "parsed", "marked", "inline")))
    print(f"{'all':28}" + "".join(f"{total[name]:8}" for name in ("run", "parsed", "marked", "inline")))


if __name__ == "__main__":
    main()
