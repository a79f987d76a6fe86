"""``make prose-sample`` finds the sentences of every kind of file that people read."""

from __future__ import annotations

import re

import pytest

from tests.prose import ROOT, Sentence, draw, sentences_of, source_paths

PYTHON = '''"""The first sentence of a module. Its second one has `code`."""

# A comment goes on
# in a second line.
value = 1  # not a block


def call(path):
    """Return what a function returns.

    A paragraph begins five lines down.
    """
    raise ValueError(f"{path} should begin with a slash")
'''
RUST = """//! Reads a thing from a file.
/// Returns one of the things.
fn call() {}
"""
MARKDOWN = """# A heading is no sentence here

One paragraph over
two lines of text.

```
this is code, not a sentence
```
* An item of one list.
| a table row has no sentence | either |
"""


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        (
            "a.py",
            PYTHON,
            [
                (3, "A comment goes on in a second line."),
                (1, "The first sentence of a module."),
                (1, "Its second one has `code`."),
                (9, "Return what a function returns."),
                (11, "A paragraph begins five lines down."),
                (13, "{} should begin with a slash"),
            ],
        ),
        ("a.rs", RUST, [(1, "Reads a thing from a file."), (1, "Returns one of the things.")]),
        (
            "a.md",
            MARKDOWN,
            [(3, "One paragraph over two lines of text."), (9, "An item of one list.")],
        ),
    ],
)
def test_sentences_and_their_lines(path: str, source: str, expected: list[tuple[int, str]]) -> None:
    assert sentences_of(path, source) == [Sentence(path, line, text) for line, text in expected]


def test_same_seed_draws_the_same_sentences() -> None:
    drawn = draw(100, seed=7)
    assert len(set(drawn)) == 100
    assert drawn == draw(100, seed=7)
    assert drawn != draw(100, seed=8)


# Words that hide the actor of a sentence.
VAGUE = re.compile(
    r"\b(who|whoever|whom|nobody|somebody|someone|anybody|so many|is had|what there is)\b", re.I
)


def test_sentences_name_their_actors() -> None:
    found = [
        f"{sentence.path}:{sentence.line}: {sentence.text}"
        for path in source_paths()
        if path.startswith(("pysrc/", "spark_udfs/"))
        for sentence in sentences_of(path, (ROOT / path).read_text(encoding="utf-8"))
        if VAGUE.search(sentence.text)
    ]
    assert found == []
