"""What a worker knows of the topics: the inspector takes the snapshots."""

from sluice.contrib.kafka.inspector import Inspector as Snapshots

__all__ = ["Snapshots"]
