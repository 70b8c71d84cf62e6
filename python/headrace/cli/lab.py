"""``headrace lab``: workloads from YAML, run and measured. The lab's own modules are loaded when they are called."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.cli._common import setting
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES: Final = frozenset({"numpy", "plotly", "psutil", "rich", "yaml"})
"""What the lab imports and headrace alone does not bring."""

BROKERS_MAX: Final = 20

_EXAMPLES: Final = """\
examples:
  headrace lab check workload.yaml
  headrace lab run workload.yaml -b localhost:9092 --driver headrace,confluent-kafka
  headrace lab run workload.yaml --set producerRate=5000 --set consumerConfig.max.poll.records=100
  headrace lab compare results/A results/B --page both.html
  headrace lab drivers

docs/lab.md has the fields of a workload.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's actions and their options."""
    parser.epilog = _EXAMPLES
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="check workload files and report every mistake in them")
    check.add_argument("files", nargs="+", type=Path, metavar="FILE")
    check.set_defaults(run=_check)
    run = actions.add_parser("run", help="run a workload and write a folder with its results")
    _run_options(run)
    run.set_defaults(run=_run)
    report = actions.add_parser("report", help="write the report page of a bundle or campaign again")
    report.add_argument("folder", type=Path, metavar="DIR")
    report.set_defaults(run=_report)
    compare = actions.add_parser("compare", help="compare two bundles or campaigns")
    compare.add_argument("first", type=Path, metavar="A")
    compare.add_argument("second", type=Path, metavar="B")
    compare.add_argument("--page", type=Path, metavar="FILE", help="also write a page with both")
    compare.set_defaults(run=_compare)
    drivers = actions.add_parser("drivers", help="list the clients that can be driven on this machine")
    drivers.set_defaults(run=_drivers)


def _run_options(run: argparse.ArgumentParser) -> None:
    run.add_argument("file", type=Path, metavar="FILE")
    where = run.add_mutually_exclusive_group()
    where.add_argument(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        default=os.environ.get("HEADRACE_BOOTSTRAP", "localhost:9092"),
        help="the cluster (default: $HEADRACE_BOOTSTRAP or localhost:9092)",
    )
    where.add_argument(
        "--kafka",
        type=_brokers,
        metavar="N",
        help="start N Apache Kafka brokers on loopback for this run (in headrace's repository only)",
    )
    run.add_argument("--driver", metavar="NAME[,NAME]", help="clients to drive, instead of those in the file")
    run.add_argument("--mode", help="mode, instead of that in the file")
    run.add_argument(
        "--set",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        type=setting,
        help="a field, instead of that in the file, such as consumers=6; can be repeated",
    )
    run.add_argument(
        "--only", metavar="PATTERN", default="*", help="run only variations whose names match, such as '*=6'"
    )
    run.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("results"), help="folder for the results (default: %(default)s)"
    )
    run.add_argument("--plain", action="store_true", help="print a line every ten seconds, even on a terminal")
    run.add_argument("--keep-topics", action="store_true", help="keep topics and groups at the end")


def lab(module: str) -> Any:
    """A module of the lab.

    Raises:
        ConfigError: a package that it needs is not installed.
    """
    try:
        return import_module(f"headrace.lab.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        raise ConfigError(
            f"the lab needs the package {error.name}: in a checkout of headrace, pip install '.[lab]'"
        ) from None


def _run(options: argparse.Namespace) -> int:
    settings = list(options.set)
    if options.mode:
        settings.append(("mode", options.mode))
    if options.driver:
        settings.append(("driver", f"[{options.driver}]"))
    try:
        campaign = lab("campaign").load(options.file, settings)
    except lab("nodes").WorkloadErrors as errors:
        sys.stderr.write(f"{errors}\n")
        return 2
    labs = lab("lab")
    with contextlib.ExitStack() as started:
        bootstrap, kafka = options.bootstrap, None
        if options.kafka is not None:
            kafka = started.enter_context(_kafka(options.kafka))
            bootstrap = kafka.bootstrap_servers
        chosen = labs.Options(bootstrap, options.out, options.only, keep_topics=options.keep_topics, nodes=kafka)
        views = lab("view")
        view = views.Plain() if options.plain or not sys.stdout.isatty() else views.Rich()
        runner = labs.Lab(campaign, chosen, view)
        status: int = asyncio.run(runner.run())
        if kafka is not None and runner.folder is not None:
            _keep_logs(kafka, runner.folder)
    return status


def _brokers(text: str) -> int:
    """A number of brokers."""
    if not text.isdecimal() or not 1 <= int(text) <= BROKERS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of brokers, 1 to {BROKERS_MAX}")
    return int(text)


@contextlib.contextmanager
def _kafka(count: int) -> Iterator[Any]:
    """Apache Kafka as the tests start it."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "tests" / "kafka" / "nodes.py").is_file():
        raise ConfigError("--kafka works in headrace's repository only; give --bootstrap")
    sys.path.insert(0, str(root))
    nodes: Any = import_module("tests.kafka.nodes")
    java: Any = import_module("tests.kafka.java")
    try:
        # The repository has Kafka's clients already.
        os.environ.setdefault("HEADRACE_LAB_CLASSPATH", java.classpath())
    except java.MissingError as error:
        raise ConfigError(f"--kafka {count}: {error}") from None
    with contextlib.ExitStack() as started:
        try:
            kafka = started.enter_context(nodes.ApacheNodes(count))
        except RuntimeError as error:
            raise ConfigError(f"--kafka {count}: {error}") from None
        yield kafka


def _keep_logs(kafka: Any, folder: Path) -> None:
    """Copies what the brokers logged, and their settings, before they go."""
    (folder / "logs").mkdir(exist_ok=True)
    for node in kafka.nodes:
        for name in ("server.log", "server.properties"):
            if (node.directory / name).is_file():
                shutil.copy(node.directory / name, folder / "logs" / f"broker-{node.number}-{name}")


def _report(options: argparse.Namespace) -> int:
    print(lab("report").write(options.folder))
    return 0


def _compare(options: argparse.Namespace) -> int:
    found = lab("compare").compare(options.first, options.second)
    print(found.text(), end="")
    if options.page is not None:
        options.page.write_text(found.page(), encoding="utf-8")
        print(options.page)
    return 0


def _drivers(options: argparse.Namespace) -> int:
    del options
    drivers, java, preview = lab("worker.drivers"), lab("java_"), lab("fields").PREVIEW
    for name in (*drivers.MODULES, "java"):
        try:
            reported = " ".join(java.command()[:1]) if name == "java" else drivers.load(name).version
        except drivers.DriverError as error:
            reported = str(error)
        print(f"{name:<16} {reported}{' (share groups: preview)' if name in preview else ''}")
    return 0


def _check(options: argparse.Namespace) -> int:
    campaigns, status = lab("campaign"), 0
    for path in options.files:
        try:
            found = campaigns.load(path)
        except lab("nodes").WorkloadErrors as errors:
            sys.stderr.write(f"{errors}\n")
            status = 2
        else:
            count = len(found.variations)
            print(f"{path}: {found.name}: {count} variation{'s' if count > 1 else ''}, all well")
    return status
