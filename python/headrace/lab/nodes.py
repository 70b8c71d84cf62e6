"""YAML as nodes that know their line, and values read from them by the type that their field wants.

A scalar is taken as it was written, whatever YAML 1.1 makes of it: ``1e6``, ``20_000_000`` and ``NO`` mean what their
author meant.
"""

from __future__ import annotations

import difflib
import io
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

FILE_BYTES_MAX: Final = 1 << 20
OPTION: Final = "--set"
"""What the "file" of a value begins with that stands in the command."""

TRUE: Final = frozenset({"true", "yes", "on"})
FALSE: Final = frozenset({"false", "no", "off"})
_WHOLE: Final = re.compile(r"[+-]?\d[\d_]*")


@dataclass(frozen=True, order=True)
class Mark:
    """A place in a file, counted from 1; line 0 is no place, such as an option of the command."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        """As compilers print it."""
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class WorkloadError(ConfigError):
    """What is wrong with one place of a workload file."""

    def __init__(self, mark: Mark, field: str, sentence: str) -> None:
        """Takes the place, the field if one is meant, and what is wrong."""
        super().__init__(f"{mark}: {field}: {sentence}" if field else f"{mark}: {sentence}")
        self.mark = mark
        self.field = field


class WorkloadErrors(ConfigError):  # noqa: N818  (several of them)
    """Everything that is wrong with a workload file, by line."""

    def __init__(self, errors: Iterable[WorkloadError]) -> None:
        """Sorts them."""
        self.errors = sorted(errors, key=lambda error: error.mark)
        super().__init__("\n".join(str(error) for error in self.errors))


@dataclass(frozen=True)
class Entry:
    """A field as given: its node, and where its name stands."""

    node: Node
    mark: Mark


Entries: TypeAlias = dict[str, Entry]


class Reader:
    """Reads values from the nodes of one file."""

    def __init__(self, file: str) -> None:
        self.file = file

    def mark(self, node: Node) -> Mark:
        """Where a node begins: in this file, or in an option of the command, which has no lines."""
        return _mark(node.start_mark)

    def error(self, node: Node, field: str, sentence: str) -> WorkloadError:
        """An error at that node."""
        return WorkloadError(self.mark(node), field, sentence)

    def compose(self, text: str) -> Node | None:
        """The document's root; None if it is empty.

        Raises:
            WorkloadError: it is not YAML.
        """
        stream = io.StringIO(text)
        stream.name = self.file
        try:
            return yaml.compose(stream, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            at = error.problem_mark or error.context_mark
            place = _mark(at) if at else Mark(self.file)
            sentence = ", ".join(part for part in (error.context, error.problem) if part)
            raise WorkloadError(place, "", f"not YAML: {sentence}") from None
        except (yaml.YAMLError, RecursionError) as error:
            raise WorkloadError(Mark(self.file), "", f"not YAML: {str(error).splitlines()[0]}") from None

    def mapping(self, node: Node, field: str) -> tuple[Entries, list[WorkloadError]]:
        """A mapping's entries by name; the second of two with one name is an error."""
        if not isinstance(node, MappingNode):
            raise self.error(node, field, f"is a mapping (NAME: VALUE), not {kind(node)}")
        entries: Entries = {}
        errors = []
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                errors.append(self.error(key, field, "a name is a word"))
            elif key.value in entries:
                path = f"{field}.{key.value}" if field else key.value
                errors.append(self.error(key, path, f"is there already in line {entries[key.value].mark.line}"))
            else:
                entries[key.value] = Entry(value, self.mark(key))
        return entries, errors

    def sequence(self, node: Node, field: str) -> Sequence[Node]:
        """A list's items."""
        if not isinstance(node, SequenceNode):
            raise self.error(node, field, f"is a list, not {kind(node)}")
        items: Sequence[Node] = node.value
        return items

    def text(self, node: Node, field: str) -> str:
        """A scalar as written."""
        if not isinstance(node, ScalarNode):
            raise self.error(node, field, f"is one value, not {kind(node)}")
        if node.value == "" and node.style is None:
            raise self.error(node, field, "has no value")
        return str(node.value)

    def word(self, node: Node, field: str, words: Iterable[str], what: str) -> str:
        """One of some words."""
        text = self.text(node, field)
        known = list(words)
        if text not in known:
            raise self.error(node, field, f"unknown {what} {text!r}: one of {', '.join(known)}{nearest(text, known)}")
        return text

    def flag(self, node: Node, field: str) -> bool:
        """True or false."""
        text = self.text(node, field).lower()
        if text not in TRUE | FALSE:
            raise self.error(node, field, f"is true or false, not {text!r}")
        return text in TRUE

    def number(self, node: Node, field: str, low: float | None = None, high: float | None = None) -> float:
        """A number in its range."""
        text = self.text(node, field)
        try:
            value = float(text)
        except ValueError:
            raise self.error(node, field, f"is a number, not {text!r}") from None
        if not math.isfinite(value):
            raise self.error(node, field, f"is a finite number, not {text!r}")
        self._ranged(node, field, value, low, high)
        return value

    def whole(self, node: Node, field: str, low: float | None = None, high: float | None = None) -> int:
        """A whole number in its range; ``1e6`` is one."""
        text = self.text(node, field)
        value = int(text) if _WHOLE.fullmatch(text) and len(text) < 30 else None  # noqa: PLR2004
        if value is None:
            broken = self.number(node, field, low, high)
            if broken != int(broken):
                raise self.error(node, field, f"is a whole number, not {text!r}")
            value = int(broken)
        self._ranged(node, field, value, low, high)
        return value

    def _ranged(self, node: Node, field: str, value: float, low: float | None, high: float | None) -> None:
        if low is not None and value < low:
            raise self.error(node, field, f"is at least {low:,g}, not {value:,g}")
        if high is not None and value > high:
            raise self.error(node, field, f"is at most {high:,g}, not {value:,g}")


def read(path: Path) -> tuple[Reader, Node]:
    """A file's root node, and what reads it.

    Raises:
        WorkloadError: it is no file, empty, not UTF-8 or not YAML.
    """
    mark = Mark(str(path))
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise WorkloadError(mark, "", error.strerror or str(error)) from None
    if len(raw) > FILE_BYTES_MAX:
        raise WorkloadError(mark, "", f"is over {FILE_BYTES_MAX:,} bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise WorkloadError(Mark(str(path), line, 1), "", "is not UTF-8") from None
    reader = Reader(str(path))
    root = reader.compose(text)
    if root is None:
        raise WorkloadError(mark, "", "is empty")
    return reader, root


def _mark(place: yaml.Mark) -> Mark:
    return Mark(place.name) if place.name.startswith(OPTION) else Mark(place.name, place.line + 1, place.column + 1)


def kind(node: Node) -> str:
    """What a node is, in words."""
    if isinstance(node, MappingNode):
        return "a mapping"
    return "a list" if isinstance(node, SequenceNode) else f"{node.value!r}"


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at the name that was meant; empty if none is near."""
    folded = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=0.6)
    return f"; did you mean {folded[found[0]]}?" if found else ""
