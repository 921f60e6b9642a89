"""The pure parts of a real node: what is mounted, what a name server answers, what an image is."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from ateplace.local.realnode import cgroups, dns, oci, stand_ins, tunnel
from ateplace.local.realnode.cgroups import Hierarchy
from ateplace.local.realnode.config import Address

KNOWN = {"web.demo.svc.cluster.local": "198.19.0.7"}


def test_hierarchies_of_version_1_have_the_options_they_are_mounted_with() -> None:
    found = cgroups.hierarchies(
        "5:cpu,cpuacct:/here\n1:name=systemd:/\n0::/\n",
        "30 25 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "31 25 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
        "32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    )
    assert found == [
        Hierarchy(Path("/sys/fs/cgroup/cpu"), "cpu,cpuacct", "/here"),
        Hierarchy(Path("/sys/fs/cgroup/systemd"), "none,name=systemd", "/"),
        Hierarchy(Path("/sys/fs/cgroup/unified"), "", "/"),
    ]


def test_in_version_2_a_node_is_below_the_root() -> None:
    (found,) = cgroups.hierarchies("0::/user.slice\n", "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    assert found == Hierarchy(cgroups.ROOT, "", "/user.slice")
    assert found.parent == cgroups.ROOT


def test_cgroups_of_a_node_whose_process_has_ended_are_removed_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that a living node has made for pods to come are empty, too."""
    monkeypatch.setattr(cgroups, "hierarchies", lambda: [Hierarchy(tmp_path, "cpu", "/")])
    with subprocess.Popen(["true"]) as ended:
        pass
    living = tmp_path / f"ateplace-node-one-{os.getppid()}" / "kubepods"
    dead = tmp_path / f"ateplace-node-two-{ended.pid}" / "kubepods"
    for each in (living, dead):
        each.mkdir(parents=True)
    (made,) = cgroups.make("three")
    assert made == tmp_path / f"ateplace-node-three-{os.getpid()}"
    assert living.exists()
    assert not dead.parent.exists()


def elf(*kinds: int) -> bytes:
    """The head of a program with segments of these kinds."""
    head = b"\x7fELF\x02\x01" + bytes(26) + (64).to_bytes(8, "little") + bytes(14)
    head += (56).to_bytes(2, "little") + len(kinds).to_bytes(2, "little") + bytes(6)
    return head + b"".join(kind.to_bytes(4, "little") + bytes(52) for kind in kinds)


def test_a_static_program_asks_for_no_linker() -> None:
    assert stand_ins.is_static(elf(1, 1, 4))
    assert not stand_ins.is_static(elf(6, 3, 1))
    assert not stand_ins.is_static(b"#!/bin/sh\n")


def query(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return b"\x12\x34\x01\x00\x00\x01" + bytes(6) + labels + b"\x00" + kind.to_bytes(2, "big") + b"\x00\x01"


def test_a_service_is_answered_with_its_address() -> None:
    asked = query("Web.demo.svc.cluster.local")
    reply = dns.answer(asked, KNOWN)
    assert reply[:8] == b"\x12\x34\x85\x80\x00\x01\x00\x01"
    assert reply[12:].startswith(asked[12:])
    assert reply.endswith(b"\x00\x04" + socket.inet_aton("198.19.0.7"))


def test_a_service_has_no_other_records_and_no_other_name_exists() -> None:
    assert dns.answer(query("web.demo.svc.cluster.local", kind=28), KNOWN)[2:8] == b"\x85\x80\x00\x01\x00\x00"
    assert dns.answer(query("web.example"), KNOWN)[2:8] == b"\x85\x83\x00\x01\x00\x00"
    with pytest.raises(IndexError):
        dns.answer(b"short", KNOWN)


def test_the_same_files_give_the_same_image() -> None:
    files = {"bin": oci.Entry(), "bin/a": oci.Entry(b"a"), "bin/b": oci.Entry(link="a")}
    assert oci.image(files) == oci.image(dict(reversed(files.items())))
    assert oci.image(files).descriptor != oci.image(files, entrypoint=["/bin/a"]).descriptor


def test_nodes_have_addresses_of_their_own() -> None:
    assert Address.of(1) == ("198.18.1.254", "198.18.1.0/24")
    assert len({Address.of(number) for number in range(250)}) == 250


def test_the_tunnel_leads_to_real_nodes_and_loopback_only(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        tunnel.dial(tmp_path, "127.0.0.1", listener.getsockname()[1]).close()
    with pytest.raises(OSError, match=r"198\.18\.1\.1 is on no real node"):
        tunnel.dial(tmp_path, "198.18.1.1", 10250)
