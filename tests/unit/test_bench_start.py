"""`make bench-start`: what it reads out of containerd's log, of either major version."""

import pytest

from bench.start import containers

SANDBOX, INIT, ATEOM = "5a", "1f", "a7"
ONE = {
    "sandbox": r"RunPodSandbox for &PodSandboxMetadata{Name:start-1,Uid:u,Namespace:bench,Attempt:0,}",
    "init": r"&ContainerMetadata{Name:wait-for-atelet,Attempt:0,}",
    "ateom": r"&ContainerMetadata{Name:ateom,Attempt:0,}",
}
TWO = {
    "sandbox": r"RunPodSandbox for name:\"start-1\"  uid:\"u\"  namespace:\"bench\"",
    "init": r"name:\"wait-for-atelet\"",
    "ateom": r"name:\"ateom\"",
}


def log(said: dict[str, str]) -> str:
    messages = [
        said["sandbox"],
        rf"{said['sandbox']} returns sandbox id \"{SANDBOX}\"",
        *(
            line
            for name, own in (("init", INIT), ("ateom", ATEOM))
            for line in (
                rf"CreateContainer within sandbox \"{SANDBOX}\" for container {said[name]}",
                rf"CreateContainer within sandbox \"{SANDBOX}\" for {said[name]} returns container id \"{own}\"",
                rf"StartContainer for \"{own}\"",
                rf"StartContainer for \"{own}\" returns successfully",
            )
        ),
    ]
    lines = [f'time="2026-11-18T10:00:{at:02}.5Z" level=info msg="{message}"' for at, message in enumerate(messages)]
    return "\n".join(
        [*lines, f'time="2026-11-18T10:00:59Z" level=info msg="shim disconnected" id={INIT} namespace=k8s.io']
    )


@pytest.mark.parametrize("said", [ONE, TWO], ids=["containerd 1", "containerd 2"])
def test_every_moment_is_found(said: dict[str, str]) -> None:
    found = containers(log(said))
    first = found["start-1", "sandbox"] - 1
    assert {key: at - first for key, at in found.items()} == {
        ("start-1", "sandbox"): 1,
        ("start-1", "wait-for-atelet requested"): 2,
        ("start-1", "wait-for-atelet started"): 5,
        ("start-1", "ateom requested"): 6,
        ("start-1", "ateom started"): 9,
        ("start-1", "wait-for-atelet ended"): 58.5,
    }
