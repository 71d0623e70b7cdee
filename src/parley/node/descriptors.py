"""Files and connections share one limit of the system; a broker that could run out of it does not start."""

from __future__ import annotations

import resource

from parley.node.config import Config, ConfigError
from parley.node.door import handshakes, places_for_brokers
from parley.node.telemetry.server import MAX_CONNECTIONS
from parley.store.disk import OPEN_FILES

OTHERS = 64  # the log, the safety record, the loop's own, names that are looked up


def needed(config: Config) -> int:
    """Descriptors that this broker may have open at once."""
    count = len(config.brokers)
    peers = places_for_brokers(count) + handshakes(count)
    watchers = 0 if config.metrics_listen is None else MAX_CONNECTIONS
    return config.limits.connections + peers + watchers + OPEN_FILES * len(config.shards) + OTHERS


def require_descriptors(config: Config) -> None:
    """Take what the system allows. Raises `ConfigError` if that is too little: a store without files stops the broker."""
    want, available = needed(config), _raised()
    if available < want:
        room = config.limits.connections - (want - available)
        lower = f", or lower limits.connections to {room} at most" if room > 0 else ""
        raise ConfigError(
            config.path,
            "limits.connections",
            f"{config.limits.connections} connections and the store need {want} open files, and the system allows this "
            f"process {available}; raise that with `ulimit -n {want}`, or LimitNOFILE={want} in a systemd unit{lower}",
        )


def _raised() -> int:
    """The soft limit, raised as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # some systems name a hard limit that they do not grant
            pass
    return 2**31 if soft == resource.RLIM_INFINITY else soft
