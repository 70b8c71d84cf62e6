"""Import circles: in each crate, the files that cannot be read one without all the others.

A circle of more than three files is a complaint. What counts is who needs whom, not through which path it is named:

- A name counts for the file that defines it. `use super::Y` where the parent says `pub use x::Y` leads to `x`, so a
  module that only re-exports its children is part of no circle.
- A `use` of a module counts for nothing by itself; the names that are taken from it do (`use super::codes` and
  `codes::NONE`). A `pub use` counts where the file itself uses the name.
- A file with an `impl T` of its own adds methods to a type of another file: whoever calls such a method through `self`
  from the type's file, or from another file of such an `impl`, needs the file with the method. Otherwise one object
  cut over twenty files would pass for twenty parts.
- Tests count for nothing: what stands behind `#[cfg(test)]`, with the files that it names.

Run by itself, with the names of crates: which names hold its circles together.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
CIRCLE_FILES_MAX = 3

# Comments, strings and characters, which are no code; block comments do not nest here.
NO_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/|b?r(?P<marks>#*)\".*?\"(?P=marks)|b?\"(?:\\.|[^\"\\])*\"|b?'(?:\\[^\n]+?|[^'\\\n])'", re.DOTALL
)
TOKEN = re.compile(r"(?:r#)?[A-Za-z_]\w*|'\w+|::|->|=>|\S")
TEST_ONLY = re.compile(r"cfg \( (?:(?:all|any) \( )?test\b")
IDENT = re.compile(r"[A-Za-z_]\w*$")
DEFINES = {"struct", "enum", "union", "trait", "type", "const", "static", "fn", "macro_rules"}
PAIRS = {"(": ")", "[": "]", "{": "}"}

Path_ = tuple[str, ...]


@dataclass
class Module:
    """One module: a file, or a part of one."""

    path: Path_
    file: Path
    children: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)
    imports: dict[str, Path_] = field(default_factory=dict)
    globs: list[Path_] = field(default_factory=list)
    reexports: set[str] = field(default_factory=set)
    paths: set[Path_] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    # By the name of a type: the methods that an `impl` here adds to it.
    methods: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    called: set[str] = field(default_factory=set)


def tokens_of(text: str) -> list[str]:
    """The tokens of a file, without comments and with empty strings."""
    return TOKEN.findall(NO_CODE.sub(" ", text))


def closing(tokens: list[str], start: int) -> int:
    """Where what is opened at `start` is closed."""
    stack: list[str] = []
    for at in range(start, len(tokens)):
        if tokens[at] in PAIRS:
            stack.append(PAIRS[tokens[at]])
        elif stack and tokens[at] == stack[-1]:
            stack.pop()
            if not stack:
                return at
    return len(tokens) - 1


def item_end(tokens: list[str], start: int) -> int:
    """Behind the item that begins at `start`."""
    at = start
    while at < len(tokens):
        if tokens[at] == ";":
            return at + 1
        if tokens[at] in PAIRS:
            braces, at = tokens[at] == "{", closing(tokens, at)
            if braces:
                return at + 1
        elif tokens[at] in {",", "}"}:  # a field, an arm, or the last of a block
            return at
        at += 1
    return at


def without_tests(tokens: list[str]) -> list[str]:
    """The tokens of what is compiled outside of tests."""
    kept: list[str] = []
    at = 0
    while at < len(tokens):
        if tokens[at : at + 2] == ["#", "["]:
            end = closing(tokens, at + 1)
            if TEST_ONLY.match(" ".join(tokens[at + 2 : end])):
                at = end + 1
                while tokens[at : at + 2] == ["#", "["]:
                    at = closing(tokens, at + 1) + 1
                at = item_end(tokens, at)
                continue
        kept.append(tokens[at])
        at += 1
    return kept


def use_leaves(tokens: list[str], prefix: Path_ = ()) -> Iterator[tuple[Path_, str]]:
    """The paths that a `use` names, each with the name it has from then on; `*` for all."""
    start, depth = 0, 0
    for at in range(len(tokens) + 1):
        word = tokens[at] if at < len(tokens) else ","
        depth += (word == "{") - (word == "}")
        if word != "," or depth:
            continue
        branch = tokens[start:at]
        start = at + 1
        if not branch:
            continue
        if "{" in branch:
            opened = branch.index("{")
            names = tuple(word for word in branch[:opened] if word != "::")
            yield from use_leaves(branch[opened + 1 : -1], (*prefix, *names))
            continue
        alias = branch[-1] if "as" in branch else None
        names = tuple(word for word in branch[: branch.index("as") if alias else None] if word != "::")
        if names[-1] == "self" and (prefix or len(names) > 1):
            names = names[:-1]
        path = (*prefix, *names)
        yield path, alias or path[-1]


class Reader:
    """Reads one file into its module, and the modules that stand inside of it."""

    def __init__(self, file: Path, path: Path_, modules: dict[Path_, Module]) -> None:
        self.file, self.modules = file, modules
        self.tokens = without_tests(tokens_of(file.read_text(encoding="utf-8")))
        self.read(path, 0, len(self.tokens))

    def read(self, path: Path_, start: int, end: int) -> None:
        """One module's tokens."""
        module = self.modules.setdefault(path, Module(path, self.file))
        at, depth = start, 0
        while at < end:
            word = self.tokens[at]
            if word in PAIRS:
                depth += 1
            elif word in PAIRS.values():
                depth -= 1
            elif word == "mod" and IDENT.match(self.tokens[at + 1]):
                name = self.tokens[at + 1]
                module.children.add(name)
                if self.tokens[at + 2] == "{":
                    close = closing(self.tokens, at + 2)
                    self.read((*path, name), at + 3, close)
                    at = close
                else:
                    at += 2
            elif word == "use" and self.tokens[at - 1] != "->":
                at = self.use(module, at)
            elif word == "impl" and depth == 0:
                self.impl(module, at)
            elif word in DEFINES and depth == 0:
                named = at + 2 if self.tokens[at + 1] in {"!", "mut"} else at + 1
                module.defined.add(self.tokens[named])
            elif IDENT.match(word):
                at = self.name(module, at)
            at += 1

    def use(self, module: Module, at: int) -> int:
        """What a `use` brings in. Gives its last word."""
        end = self.tokens.index(";", at)
        public = self.tokens[at - 1] == "pub" or (self.tokens[at - 1] == ")" and "pub" in self.tokens[at - 6 : at])
        for path, name in use_leaves(self.tokens[at + 1 : end]):
            if name == "*":
                module.globs.append(path[:-1])
            else:
                module.imports[name] = path
                if public:
                    module.reexports.add(name)
        return end

    def impl(self, module: Module, at: int) -> None:
        """The methods that an `impl` of no trait adds to a type."""
        opened = self.tokens.index("{", at)
        head = self.tokens[at + 1 : opened]
        if "for" in head:
            return
        if head[0] == "<":
            depth = 0
            for skipped, word in enumerate(head):
                depth += (word == "<") - (word == ">")
                if depth == 0:
                    head = head[skipped + 1 :]
                    break
        body = self.tokens[opened : closing(self.tokens, opened)]
        methods = {name for word, name in pairwise(body) if word == "fn"}
        module.methods[head[0]] |= methods

    def name(self, module: Module, at: int) -> int:
        """A name, or a path of several. Gives its last word."""
        before = self.tokens[at - 1] if at else ""
        if before == "." and self.tokens[at - 2] == "self" and self.tokens[at + 1 : at + 2] == ["("]:
            module.called.add(self.tokens[at])
        if before in {".", "::"}:
            return at
        path = [self.tokens[at]]
        while self.tokens[at + 1 : at + 2] == ["::"] and IDENT.match(self.tokens[at + 2]):
            at += 2
            path.append(self.tokens[at])
        if path[0] == "Self" and len(path) > 1:
            module.called.add(path[1])
        module.paths.add(tuple(path))
        module.names.add(path[0])
        return at


class Crate:
    """The modules of one crate, and which file needs which."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.modules: dict[Path_, Module] = {}
        # From file to file, the names that are needed.
        self.needs: dict[Path, dict[Path, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.load(source / "lib.rs", ())
        for module in list(self.modules.values()):
            self.follow(module)
        self.follow_methods()

    def load(self, file: Path, path: Path_) -> None:
        """A file, and those of its modules."""
        before = set(self.modules)
        Reader(file, path, self.modules)
        for module in [self.modules[new] for new in self.modules if new not in before]:
            folder = self.source.joinpath(*module.path)
            for child in sorted(module.children):
                for found in (folder / f"{child}.rs", folder / child / "mod.rs"):
                    if found.is_file():
                        self.load(found, (*module.path, child))

    def resolve(
        self, at: Path_, path: Path_, seen: frozenset[tuple[Path_, Path_]] = frozenset()
    ) -> Path_ | Module | None:
        """What a path means, seen from the module `at`: a module's path, or the module that defines it.

        None for what is of another crate, or a name of the moment such as a variable.
        """
        if (at, path) in seen:
            return None
        seen |= {(at, path)}
        names = list(path)
        if names[0] == "crate":
            at, names = (), names[1:]
        while names and names[0] in {"self", "super"}:
            at = at[:-1] if names.pop(0) == "super" else at
        inside = len(names) < len(path)
        while names:
            module, name = self.modules[at], names[0]
            if name in module.children and (*at, name) in self.modules:
                at, names, inside = (*at, name), names[1:], True
                continue
            if name in module.defined:
                return module
            found = self.imported(module, name, seen)
            if isinstance(found, tuple):
                at, names, inside = found, names[1:], True
                continue
            # What a macro makes is not seen here; it is the module's own.
            return found or (module if inside and name not in module.imports else None)
        return at

    def imported(self, module: Module, name: str, seen: frozenset[tuple[Path_, Path_]]) -> Path_ | Module | None:
        """What a name means that comes in by a `use`."""
        if name in module.imports:
            return self.resolve(module.path, module.imports[name], seen)
        for glob in module.globs:
            inner = self.resolve(module.path, glob, seen)
            if isinstance(inner, tuple):
                there = self.modules[inner]
                if name in there.defined:
                    return there
                if name in there.children:
                    return (*inner, name)
                if found := self.imported(there, name, seen):
                    return found
        return None

    def follow(self, module: Module) -> None:
        """What a module needs."""
        used = set(module.paths) | set(module.globs)
        used |= {path for name, path in module.imports.items() if name not in module.reexports or name in module.names}
        for path in used:
            found = self.resolve(module.path, path)
            if isinstance(found, Module) and found.file != module.file:
                self.needs[module.file][found.file].add("::".join(path))

    def follow_methods(self) -> None:
        """What the files of one type need of each other."""
        parts: dict[tuple[Path_, str], list[tuple[Module, set[str]]]] = defaultdict(list)
        for module in self.modules.values():
            for name, methods in module.methods.items():
                home = self.resolve(module.path, (name,))
                if isinstance(home, Module):
                    parts[home.path, name].append((module, methods))
        for (home, name), owners in parts.items():
            users = {id(module): module for module, _ in owners} | {id(self.modules[home]): self.modules[home]}
            for owner, methods in owners:
                for user in users.values():
                    if user.file != owner.file and (called := methods & user.called):
                        self.needs[user.file][owner.file] |= {f"{name}.{method}" for method in called}

    def circles(self) -> list[list[Path]]:
        """The circles of more than three files, the largest first."""
        found = components({file: set(needed) for file, needed in self.needs.items()})
        large = [sorted(circle) for circle in found if len(circle) > CIRCLE_FILES_MAX]
        return sorted(large, key=lambda circle: (-len(circle), circle))


def components(graph: Mapping[Path, set[Path]]) -> Iterator[set[Path]]:
    """The strongly connected components, by what is reached in both directions."""

    def reached(start: Path, edges: Mapping[Path, Iterable[Path]]) -> set[Path]:
        found, open_ = {start}, [start]
        while open_:
            for after in edges.get(open_.pop(), ()):
                if after not in found:
                    found.add(after)
                    open_.append(after)
        return found

    back: dict[Path, set[Path]] = defaultdict(set)
    for file, needed in graph.items():
        for other in needed:
            back[other].add(file)
    left = set(graph)
    while left:
        start = min(left)
        component = reached(start, graph) & reached(start, back)
        left -= component
        yield component


def crates() -> list[Path]:
    """The folders of the crates."""
    return sorted(file.parent for file in ROOT.glob("crates/*/Cargo.toml") if (file.parent / "src/lib.rs").is_file())


def import_circles() -> Iterator[str]:
    """Circles of more than three files, and crates in which nothing is found to look at."""
    if not crates():
        yield "no crate found to look for import circles in"
    for folder in crates():
        crate = Crate(folder / "src")
        if not crate.needs and len(crate.modules) > 1:
            yield f"{folder.name}: no import found in any file"
        for circle in crate.circles():
            names = ", ".join(str(file.relative_to(folder / "src")) for file in circle)
            yield f"{folder.name}: {len(circle)} files import each other in a circle: {names}"


def main(names: list[str]) -> None:
    """Prints the circles of some crates, and what holds them together."""
    for folder in crates():
        if names and folder.name not in names:
            continue
        crate = Crate(folder / "src")
        for circle in crate.circles():
            print(f"{folder.name}: a circle of {len(circle)} files")
            for file in circle:
                for other in circle:
                    if needed := crate.needs[file].get(other):
                        here, there = (str(path.relative_to(folder / "src")) for path in (file, other))
                        print(f"  {here} -> {there}: {', '.join(sorted(needed))}")


if __name__ == "__main__":
    main(sys.argv[1:])
