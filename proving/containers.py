"""podman with a store of its own, also in a container: without systemd, without overlay, and with a limit on limits."""

from __future__ import annotations

import os
from pathlib import Path

CONTAINERS = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_config_dir = "{tmp}/networks"
"""
STORAGE = '[storage]\ndriver = "vfs"\ngraphroot = "{tmp}/store"\nrunroot = "{tmp}/run"\n'


def podman_environment(tmp: Path) -> dict[str, str]:
    """The environment of podman and buildah whose images and containers are in tmp."""
    for name, text in ("containers.conf", CONTAINERS), ("storage.conf", STORAGE):
        (tmp / name).write_text(text.format(tmp=tmp))
    (tmp / "networks").mkdir(exist_ok=True)
    return os.environ | {
        "CONTAINERS_CONF": f"{tmp}/containers.conf", "CONTAINERS_STORAGE_CONF": f"{tmp}/storage.conf"
    }  # fmt: skip
