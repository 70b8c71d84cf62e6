"""A workload file as a campaign: one variation for each combination of its dimensions."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from yaml.nodes import MappingNode, ScalarNode, SequenceNode

from headrace.lab import omb
from headrace.lab.fields import BY_NAME
from headrace.lab.nodes import OPTION, Entries, Entry, Mark, Reader, WorkloadError, WorkloadErrors, nearest, read
from headrace.lab.workload import NAME_MAX, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from yaml.nodes import Node

    from headrace.lab.workload import Workload

VARIATIONS_MAX: Final = 1_000
MAPS: Final = frozenset({"map", "maps", "dimensions", "explore"})


@dataclass(frozen=True)
class Variation:
    """One combination: what its dimensions are, and the workload that follows."""

    values: dict[str, str]
    workload: Workload

    @property
    def name(self) -> str:
        """Of the dimensions; empty if there are none."""
        return ",".join(f"{field}={value}" for field, value in self.values.items())


@dataclass(frozen=True)
class Campaign:
    """A file's variations."""

    name: str
    text: str
    variations: list[Variation]


def load(path: Path, overrides: Sequence[tuple[str, str]] = ()) -> Campaign:
    """Reads a workload file.

    Args:
        path: the file.
        overrides: fields and values over those of the file, as of ``--set``; a part of a map is
            ``consumerConfig.max.poll.records``.

    Raises:
        WorkloadErrors: everything that is wrong with it.
    """
    try:
        reader, root = read(path)
        entries, errors = reader.mapping(root, "")
    except WorkloadError as error:
        raise WorkloadErrors([error]) from None
    for field, value in overrides:
        try:
            _override(entries, field, value)
        except WorkloadError as error:
            errors.append(error)
    dimensions, more = _dimensions(entries, reader)
    errors += more
    variations: list[Variation] = []
    for chosen in itertools.product(*dimensions.values()):
        varied = dict(entries)
        for field, node in zip(dimensions, chosen, strict=True):
            _put(varied, field, Entry(node, reader.mark(node)))
        workload, wrong = resolve(varied, reader, _name(path))
        errors += wrong
        if workload is not None:
            values = {field: _label(node) for field, node in zip(dimensions, chosen, strict=True)}
            variations.append(Variation(values, workload))
    if errors:
        # Each variation finds what is wrong with the fields that all of them have.
        raise WorkloadErrors({str(error): error for error in errors}.values())
    return Campaign(variations[0].workload.name, path.read_text(encoding="utf-8-sig"), variations)


def _name(path: Path) -> str:
    """A file's name as one of topics."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in path.stem)[:NAME_MAX]


def _dimensions(entries: Entries, reader: Reader) -> tuple[dict[str, Sequence[Node]], list[WorkloadError]]:
    given = entries.get("dimensions")
    if given is None:
        return {}, []
    try:
        named, errors = reader.mapping(given.node, "dimensions")
    except WorkloadError as error:
        return {}, [error]
    found: dict[str, Sequence[Node]] = {}
    fields: dict[str, Mark] = {}
    for name, entry in named.items():
        try:
            found[name] = _dimension(name, entry, reader, fields)
        except WorkloadError as error:
            errors.append(error)
    count = math.prod(len(values) for values in found.values())
    if count > VARIATIONS_MAX:
        sentence = f"make {count:,} variations; at most {VARIATIONS_MAX:,}"
        return {}, [*errors, WorkloadError(given.mark, "dimensions", sentence)]
    return found, errors


def _dimension(name: str, entry: Entry, reader: Reader, fields: dict[str, Mark]) -> Sequence[Node]:
    """The values of a dimension; `fields` are those that have one already."""
    path = f"dimensions.{name}"
    field = _known(name, entry.mark, path)
    if field in fields:
        raise WorkloadError(entry.mark, path, f"is the same field as that in line {fields[field].line}")
    fields[field] = entry.mark
    values = reader.sequence(entry.node, path)
    if not values:
        raise reader.error(entry.node, path, "is an empty list")
    return values


def _known(name: str, mark: Mark, path: str) -> str:
    """The one name of a field, or of a part of one that is a map.

    Raises:
        WorkloadError: it is none.
    """
    head, dotted, _ = name.partition(".")
    field = BY_NAME.get(omb.RENAMED.get(head, head))
    if field is None:
        raise WorkloadError(mark, path, f"unknown field{nearest(head, BY_NAME)}")
    if dotted and field.kind not in MAPS:
        raise WorkloadError(mark, path, f"{head} has no parts")
    if field.kind == "dimensions" and path.startswith("dimensions."):
        raise WorkloadError(mark, path, "a dimension is another field")
    return field.name + name[len(head) :]


def _override(entries: Entries, name: str, value: str) -> None:
    place = f"{OPTION} {name}"
    _known(name, Mark(place), "")
    reader = Reader(place)
    node = reader.compose(value)
    if node is None:
        raise WorkloadError(Mark(place), "", "has no value")
    for same in _names_of(name):
        _drop(entries, same)
    given = entries.get("dimensions")
    if given is not None and isinstance(given.node, MappingNode):
        names = [key.value for key, _ in given.node.value if isinstance(key, ScalarNode)]
        if any(same in names for same in _names_of(name)):
            raise WorkloadError(Mark(place), "", f"is a dimension: --set 'dimensions.{name}=[{value}]'")
    _put(entries, name, Entry(node, Mark(place)))


def _names_of(name: str) -> Iterable[str]:
    """All names of a field; a part of a map has one."""
    field = BY_NAME.get(omb.RENAMED.get(name, name))
    if field is None:
        return [name]
    return [field.name, *field.aliases, *(theirs for theirs, ours in omb.RENAMED.items() if ours == field.name)]


def _drop(entries: Entries, name: str) -> None:
    entries.pop(name, None)


def _put(entries: Entries, name: str, entry: Entry) -> None:
    """Sets a field, or a part of one that is a map, in a copy of it."""
    head, dotted, part = name.partition(".")
    if not dotted:
        for same in _names_of(head):
            _drop(entries, same)
        entries[head] = entry
        return
    there = entries.get(head)
    pairs = list(there.node.value) if there and isinstance(there.node, MappingNode) else []
    kept = [(key, value) for key, value in pairs if key.value != part]
    at = entry.node
    key = ScalarNode("tag:yaml.org,2002:str", part, at.start_mark, at.end_mark)
    joined = MappingNode("tag:yaml.org,2002:map", [*kept, (key, at)], at.start_mark, at.end_mark)
    entries[head] = Entry(joined, there.mark if there else entry.mark)


def _label(node: Node) -> str:
    """A dimension's value in a name."""
    if isinstance(node, ScalarNode):
        return str(node.value)
    if isinstance(node, MappingNode):
        values = [_label(value) for _, value in node.value]
        return values[0] + (f"({','.join(values[1:])})" if values[1:] else "") if values else "{}"
    if isinstance(node, SequenceNode):
        return "+".join(_label(item) for item in node.value)
    raise TypeError(type(node))
