"""What all workspaces of a daemon share."""

from __future__ import annotations

from dataclasses import dataclass, field

from qworkspace.approvals import ApprovalStore
from qworkspace.base.clock import Clock
from qworkspace.base.events import EventBus
from qworkspace.base.metrics import Metrics, NoMetrics
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.chat.models import ModelSource
from qworkspace.config.store import ConfigStore
from qworkspace.inbox import InboxStore
from qworkspace.memory.parts import DaemonMemory


@dataclass(frozen=True, slots=True)
class SharedServices:
    """The daemon's own services, given to each workspace; it ends none of them."""

    clock: Clock
    threads: Threads
    bus: EventBus
    problems: Problems
    config: ConfigStore
    models: ModelSource
    approvals: ApprovalStore
    inbox: InboxStore
    memory: DaemonMemory
    metrics: Metrics = field(default_factory=NoMetrics)
