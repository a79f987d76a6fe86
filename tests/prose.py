"""``python -m tests.prose``: draw sentences of the product and its pages at random.

A person who has not seen the project judges them: a sentence that needs a second reading is
rewritten.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import subprocess
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    "pysrc/",
    "spark_udfs/",
    "rust/core/src/",
    "rust/py/src/",
    "benches/",
    "docs/",
    "README.md",
)
SUFFIXES = (".py", ".pyi", ".pyx", ".pxi", ".pxd", ".rs", ".md")
MIN_WORDS = 5
SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\"(])")
DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
HASH_COMMENT = re.compile(r"^\s*# ?(.*)$")
RUST_COMMENT = re.compile(r"^\s*//[/!]? ?(.*)$")


@dataclass(frozen=True)
class Sentence:
    path: str
    line: int
    text: str


def source_paths() -> list[str]:
    """Tracked files of the product and its pages."""
    listing = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return [
        path
        for path in listing.splitlines()
        if path.startswith(FOLDERS) and path.endswith(SUFFIXES) and (ROOT / path).is_file()
    ]


def sentences_of(path: str, source: str) -> list[Sentence]:
    """Every sentence of the comments, docstrings, messages or paragraphs of one file."""
    passages: Iterable[tuple[int, str]]
    if path.endswith(".md"):
        passages = markdown_passages(source)
    elif path.endswith(".rs"):
        passages = comment_passages(source, RUST_COMMENT)
    else:
        passages = [*comment_passages(source, HASH_COMMENT), *docstring_passages(source)]
        if path.endswith(".py"):
            passages = [*passages, *message_passages(source)]
    return [
        Sentence(path, line, text)
        for line, passage in passages
        for text in SENTENCE_END.split(" ".join(passage.split()))
        if len(text.split()) >= MIN_WORDS
    ]


def comment_passages(source: str, comment: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Line and text of each block of comment lines; an empty comment line ends a block."""
    start, block = 0, list[str]()
    for number, line in enumerate([*source.splitlines(), ""], 1):
        match = comment.match(line)
        if match and match[1].strip():
            start = start or number
            block.append(match[1])
        elif block:
            yield start, " ".join(block)
            start, block = 0, []


def docstring_passages(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each paragraph of each docstring, by pattern: Cython has docstrings, too."""
    for match in DOCSTRING.finditer(source):
        line = source.count("\n", 0, match.start()) + 1
        for paragraph in re.split(r"\n\s*\n", textwrap.dedent(match[1])):
            yield line, paragraph
            line += paragraph.count("\n") + 2


def message_passages(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each message of an error that is raised; what is filled in shows as {}."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                text = message_text(argument)
                if text:
                    yield node.lineno, text


def message_text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(message_text(value) or "{}" for value in node.values)
    return ""


def markdown_passages(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each paragraph, list item and table row; code is left out."""
    start, block, in_code = 0, list[str](), False
    for number, line in enumerate([*source.splitlines(), ""], 1):
        is_fence = line.lstrip().startswith("```")
        begins_anew = is_fence or not line.strip() or re.match(r"\s*([*-]|\d+\.|\||#)", line)
        if begins_anew and block:
            yield start, " ".join(block)
            start, block = 0, []
        in_code ^= is_fence
        if line.strip() and not is_fence and not in_code and not re.match(r"\s*[|#<]", line):
            start = start or number
            block.append(re.sub(r"^\s*([*-]|\d+\.)\s+", "", line))


def draw(count: int, seed: int) -> list[Sentence]:
    """`count` sentences, each as likely as any other; the same for the same seed and files."""
    found = [
        sentence
        for path in source_paths()
        for sentence in sentences_of(path, (ROOT / path).read_text(encoding="utf-8"))
    ]
    return random.Random(seed).sample(found, min(count, len(found)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.prose", description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for number, sentence in enumerate(draw(options.count, options.seed), 1):
        print(f"{number:3}. {sentence.path}:{sentence.line}\n     {sentence.text}")


if __name__ == "__main__":
    main()
