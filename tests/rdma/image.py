"""What a guest with Soft-RoCE needs: an emulator, a kernel, a first file system and the verbs libraries.

All of it comes from Debian's packages, by apt and without its installing anything: the packages are unpacked below the
user's cache. No rights are needed. `python -m tests.rdma.image` does it ahead of the tests; `make test` has it done.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import lzma
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE: Final = Path(__file__).parent
PACKAGES: Final = (
    "qemu-system-x86",
    "busybox-static",
    "iproute2",
    "e2fsprogs",
    "ibverbs-providers",
    "libibverbs1",
    "libibverbs-dev",
)
"""Beside the kernel. With the last one come the headers that our own layouts are compared with."""
KERNEL: Final = os.environ.get("HEADRACE_GUEST_KERNEL", "linux-image-amd64")
"""The plain flavour: those for clouds have no rdma_rxe. Debian 12 has linux-image-6.12-amd64 as well."""
MODULES: Final = {
    "root": ("virtio_pci", "9pnet_virtio", "9p", "overlay"),
    # rxe asks for its checksum by name, and nobody is there who would load it then.
    "rxe": ("crc32_generic", "crc32_pclmul", "dummy", "ib_uverbs", "rdma_rxe"),
    "ext4": ("crc32c_generic", "loop", "ext4"),
}
"""What is loaded when: the first two at boot, the others by who wants them."""
OPTIONAL: Final = {"crc32_generic", "crc32_pclmul", "crc32c_generic", "virtio_pci", "loop"}
"""Part of some kernels themselves."""
APT_SECONDS: Final = 400
UNUSED_SECONDS: Final = 14 * 24 * 3600
"""After that an image of another version goes: another checkout may still use it."""


class NoGuestError(Exception):
    """Why there can be no guest on this machine, and what to do."""


@dataclass(frozen=True)
class Image:
    """A guest's parts."""

    folder: Path

    @property
    def kernel(self) -> Path:
        """An ELF file, which an emulator starts at once, or the compressed one."""
        return self.folder / "kernel"

    @property
    def initrd(self) -> Path:
        """The first file system: a shell, `init.sh` and modules."""
        return self.folder / "initrd"

    @property
    def packages(self) -> Path:
        """What the packages hold; the guest sees it over the machine's own files."""
        return self.folder / "packages"

    @property
    def libraries(self) -> Path:
        """Shared libraries of the packages."""
        return self.packages / "usr/lib/x86_64-linux-gnu"

    @property
    def headers(self) -> Path:
        """The folder that has `infiniband/verbs.h`."""
        return self.packages / "usr/include"

    def emulator(self) -> list[str]:
        """The command, with where it finds its parts."""
        qemu = self.packages / "usr/bin/qemu-system-x86_64"
        firmware = [self.packages / "usr/share" / name for name in ("qemu", "seabios")]
        return [str(qemu), *(word for folder in firmware for word in ("-L", str(folder)))]

    def environment(self) -> dict[str, str]:
        """For the emulator."""
        path = f"{self.libraries}:{self.packages / 'usr/lib'}"
        return {**os.environ, "LD_LIBRARY_PATH": path, "QEMU_MODULE_DIR": str(self.libraries / "qemu")}


def cache() -> Path:
    """Where it is kept: one for each version of what is in this folder."""
    recipe = b"".join((HERE / name).read_bytes() for name in ("image.py", "init.sh")) + KERNEL.encode()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "headrace" / f"guest-{hashlib.sha256(recipe).hexdigest()[:12]}"


def ensure() -> Image:
    """The image, made if it is not there.

    Raises:
        NoGuestError: It cannot be.
    """
    folder = cache()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "guest.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            check()
            for old in folder.parent.glob("guest-*/"):
                if time.time() - old.stat().st_mtime > UNUSED_SECONDS:
                    shutil.rmtree(old)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="making-") as name:
                made = Path(name) / "image"
                make(made, Path(name))
                made.rename(folder)
        os.utime(folder)
    return Image(folder)


def check() -> None:
    """Whether it can be made."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        raise NoGuestError(f"the guest is for Linux on x86_64, and this is {sys.platform} on {platform.machine()}")
    missing = [tool for tool in ("apt-get", "apt-cache", "dpkg-deb", "tar") if not shutil.which(tool)]
    if missing:
        raise NoGuestError(
            f"no {', '.join(missing)}: the guest is made of Debian's packages {', '.join((*PACKAGES, KERNEL))}, "
            "which are fetched with apt"
        )


def make(image: Path, scratch: Path) -> None:
    """Fetches and unpacks."""
    packages, kernel = image / "packages", scratch / "kernel"
    debs = fetch(scratch)
    for deb in debs:
        unpack(deb, kernel if deb.name.startswith("linux-image") else packages)
    boot = next((kernel / "boot").glob("vmlinuz-*"), None)
    if boot is None:
        raise NoGuestError(f"{KERNEL} has no kernel in it")
    (image / "kernel").write_bytes(uncompressed(boot.read_bytes()))
    write_initrd(image / "initrd", packages, kernel)


def fetch(scratch: Path) -> list[Path]:
    """The packages, and what they need that this machine has not got."""
    archives = scratch / "archives"
    (archives / "partial").mkdir(parents=True)
    try:
        return download(archives, [])
    except NoGuestError:
        # The machine's lists are of yesterday, or not there: fetch our own.
        state = scratch / "state"
        (state / "lists/partial").mkdir(parents=True)
        options = ["-o", f"Dir::State::Lists={state / 'lists'}", "-o", f"Dir::Cache={scratch / 'apt'}"]
        (scratch / "apt").mkdir()
        # It fails also when one of many sources does; whether it is one that counts, `download` will tell.
        apt(["apt-get", *options, "update"], scratch, may_fail=True)
        return download(archives, options)


def download(archives: Path, options: list[str]) -> list[Path]:
    """By apt, which checks their signatures."""
    where = [*options, "-o", "Debug::NoLocking=1", "-o", f"Dir::Cache::archives={archives}"]
    wanted = ["--yes", "--no-install-recommends", "--reinstall", "--download-only", "install", *PACKAGES]
    apt(["apt-get", *where, *wanted], archives)
    found = re.search(r"Depends: (linux-image-\S+)", apt(["apt-cache", *where, "depends", KERNEL], archives))
    if not found:
        raise NoGuestError(f"apt knows no package {KERNEL}")
    apt(["apt-get", *where, "download", found[1]], archives)
    return sorted(archives.glob("*.deb"))


def apt(command: list[str], folder: Path, *, may_fail: bool = False) -> str:
    """What it prints."""
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=APT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoGuestError(f"apt took more than {APT_SECONDS} s") from None
    if done.returncode and not may_fail:
        lines = [line for line in done.stdout.splitlines() if line.startswith("E:")]
        raise NoGuestError(f"apt cannot fetch {', '.join((*PACKAGES, KERNEL))}: {' '.join(lines)[:500]}")
    return done.stdout


def unpack(deb: Path, folder: Path) -> None:
    """As on a machine whose `/lib` is `/usr/lib`, or it would hide that of the machine below it."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / "usr" / name).mkdir(parents=True, exist_ok=True)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"usr/{name}")
    files = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE)
    untar = ["tar", "-x", "--keep-directory-symlink", "--no-same-owner", "-C", str(folder)]
    subprocess.run(untar, stdin=files.stdout, check=True)
    if files.wait():
        raise NoGuestError(f"cannot unpack {deb.name}")


def uncompressed(kernel: bytes) -> bytes:
    """The ELF file in a kernel, so that no emulated CPU has to unpack it; else the kernel as it is.

    The places are of the kernel's boot protocol: sectors of the real-mode part at 0x1f1, where the payload is at 0x248
    and how long at 0x24c.
    """
    sectors = kernel[0x1F1] or 4
    start = int.from_bytes(kernel[0x248:0x24C], "little") + (sectors + 1) * 512
    payload = kernel[start : start + int.from_bytes(kernel[0x24C:0x250], "little")]
    if payload.startswith(b"\xfd7zXZ\0"):
        # Four bytes of length follow the stream.
        return lzma.LZMADecompressor().decompress(payload)
    if payload.startswith(b"\x1f\x8b"):
        return gzip.decompress(payload[:-4])
    return kernel


def write_initrd(target: Path, packages: Path, kernel: Path) -> None:
    """The archive that a kernel unpacks as its first file system."""
    found = (kernel / "usr/lib/modules").rglob("*.ko*")
    modules = {path.name.split(".ko")[0].replace("-", "_"): path for path in found}
    folders = ("bin", "dev", "host", "modules", "packages", "proc", "sys", "top", "whole")
    files: dict[str, tuple[int, bytes]] = dict.fromkeys(folders, (0o040755, b""))
    files["bin/busybox"] = (0o100755, (packages / "usr/bin/busybox").read_bytes())
    files["init"] = (0o100755, (HERE / "init.sh").read_bytes())
    for group, names in MODULES.items():
        order = list(dict.fromkeys(name for wanted in names for name in with_needs(wanted, modules)))
        files[f"modules/{group}"] = (0o100644, "".join(f"{name}\n" for name in order).encode())
        for name in order:
            files[f"modules/{name}.ko"] = (0o100644, module(modules[name]))
    with target.open("wb") as out:
        for number, (name, (mode, content)) in enumerate(files.items(), start=1):
            out.write(entry(name, content, mode, number))
        out.write(entry("TRAILER!!!", b"", 0, 0))


def module(path: Path) -> bytes:
    """Its ELF file."""
    content = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(content)
    if path.suffix == ".ko":
        return content
    raise NoGuestError(f"{path.name} is compressed in a way that is not known here")


def with_needs(name: str, modules: dict[str, Path]) -> Iterator[str]:
    """A module after those that it needs, which its `.modinfo` names."""
    if name not in modules:
        if name in OPTIONAL:
            return
        raise NoGuestError(f"the kernel of {KERNEL} has no module {name}")
    found = re.search(rb"\0depends=([^\0]*)\0", module(modules[name]))
    for need in filter(None, (found[1] if found else b"").decode().split(",")):
        yield from with_needs(need.replace("-", "_"), modules)
    yield name


def entry(name: str, content: bytes, mode: int, number: int) -> bytes:
    """A file in a cpio archive of the kind `newc`: a magic and thirteen numbers in hexadecimal, name, content."""
    path = name.encode() + b"\0"
    numbers = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % value for value in numbers) + path
    return padded(head) + padded(content)


def padded(content: bytes) -> bytes:
    """Each part ends at a multiple of four."""
    return content + bytes(-len(content) % 4)


def main() -> int:
    """Makes the image; a machine that cannot is told why, and is no error."""
    try:
        print(f"the guest with Soft-RoCE is in {ensure().folder}")
    except NoGuestError as reason:
        print(f"no guest with Soft-RoCE here, its tests will be skipped: {reason}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
