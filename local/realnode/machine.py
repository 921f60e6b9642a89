"""`python -m ateplace.local.realnode.machine PLAN`: the machine's side of a real node, as root.

Starts the node's process 1 (`local.realnode.init`) in namespaces and cgroups of its own, and serves inside them what
the node needs from outside: the API server, and names of Services. Nothing is added to the machine's own namespaces.

However this process ends, the kernel kills `unshare`, with it process 1, and with that everything in the node; the
mounts and the network go with the last process, and a child of ours removes the cgroups.
"""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ateplace.local.keeper import die_with_parent
from ateplace.local.realnode import cgroups, dns, relay, tunnel
from ateplace.local.realnode.config import SERVICES
from ateplace.local.realnode.namespaces import Network

NAMESPACES = ("--mount", "--pid", "--fork", "--kill-child", "--net", "--uts", "--ipc", "--cgroup")
PATIENCE = 10.0
"""Seconds for `unshare` to start process 1."""


def main() -> int:
    """Run the node until we are told to end it; its exit code when it ended by itself."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    own = cgroups.make(plan["name"])
    clean = cgroups.remove_when_we_end(own)

    def be_the_node() -> None:
        die_with_parent()
        cgroups.enter(own)

    argv = ["unshare", *NAMESPACES, sys.executable, "-m", "ateplace.local.realnode.init", sys.argv[1]]
    node = subprocess.Popen(argv, stdin=subprocess.PIPE, text=True, preexec_fn=be_the_node)  # noqa: PLW1509 - one thread
    try:
        init = _child_of(node)
        cgroups.leave(node.pid)
        with Network(init) as network:
            _give_address(network, plan)
            relay.serve(network.listen(plan["api_port"]), lambda: _dial(plan["api_port"]))
            if plan["services"]:
                relay.start(dns.serve, network.datagrams(plan["address"], 53), Path(plan["services"]))
        tunnel.describe(Path(plan["directory"]), init, plan["networks"])
        if node.stdin:
            node.stdin.write("go\n")
            node.stdin.close()
        return node.wait()
    finally:
        node.kill()
        node.wait()
        clean()


def _child_of(unshare: "subprocess.Popen[str]") -> int:
    """The PID, as the machine counts, of the process that `unshare` starts, once that is in its namespaces."""
    deadline = time.monotonic() + PATIENCE
    pid = unshare.pid
    while time.monotonic() < deadline and unshare.poll() is None:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children and Path(f"/proc/{children[0]}/ns/net").readlink() != Path("/proc/self/ns/net").readlink():
            return int(children[0])
        time.sleep(0.005)
    raise OSError("unshare has not started it")


def _give_address(network: Network, plan: dict[str, Any]) -> None:
    """The node has no link to anywhere: its address is on its loopback interface, where pods reach it.

    A connection to a Service needs a route before kube-proxy's rules lead it to a pod.
    """
    network.command("ip", "link", "set", "lo", "up")
    network.command("ip", "address", "add", f"{plan['address']}/32", "dev", "lo")
    if plan["services"]:
        network.command("ip", "route", "add", SERVICES, "dev", "lo", "src", plan["address"])


def _dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        sys.exit(f"no node: {error}")
