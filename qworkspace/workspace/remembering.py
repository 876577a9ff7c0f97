"""The memory of each workspace: which backend, made from what, and what it adds to the workspace's registries."""

from __future__ import annotations

import logging
from datetime import tzinfo

from qworkspace.base.scope import current_scope
from qworkspace.base.tasks import Tasks
from qworkspace.base.zones import user_zone
from qworkspace.chat import memory as link
from qworkspace.chat.asking import ModelAsk
from qworkspace.chat.offline import Hit as OfflineHit
from qworkspace.config.home import HomeConfig
from qworkspace.config.store import ConfigStore
from qworkspace.errors import QworkspaceError
from qworkspace.memory.contract import BaseMemoryManager, MemoryBackends, NoMemory, Query
from qworkspace.memory.parts import MemoryParts
from qworkspace.workspace.local import LOCAL, LocalWorkspace
from qworkspace.workspace.manager import MultiAgentManager
from qworkspace.workspace.services import ServiceDescriptor, ServiceManager
from qworkspace.workspace.workspace import MEMORY, SESSIONS, Install, Workspace

logger = logging.getLogger(__name__)

SECTIONS = ("running.memory", "running.memory_manager_backend", "language")
OFFLINE_HITS = 5


def add_backends(backends: MemoryBackends, *, owner: str) -> None:
    """The backends of every daemon; the first one stands in for unknown names."""
    backends.add("markdown", _markdown, owner=owner, aliases=("remelight",))
    backends.add("pgvector", _pgvector, owner=owner, aliases=("adbpg", "postgres"))
    backends.add("none", lambda parts: NoMemory(), owner=owner)


def _markdown(parts: MemoryParts) -> BaseMemoryManager:
    from qworkspace.memory.markdown import MarkdownMemory  # 60 ms, which the daemon spends in a thread after its start

    return MarkdownMemory(parts)


def _pgvector(parts: MemoryParts) -> BaseMemoryManager:
    from qworkspace.memory.postgres import PgvectorMemory  # as above

    return PgvectorMemory(parts)


def memory(workspace: Workspace) -> ServiceDescriptor:
    """The declaration of the memory. It moves with edits of all other sections; without it the agent still chats."""

    def make(services: ServiceManager) -> BaseMemoryManager:
        return make_memory(workspace, services)

    return ServiceDescriptor(
        MEMORY, make, 20, sections=SECTIONS, depends_on=(LOCAL, SESSIONS), optional=True, concurrent=True
    )


def make_memory(workspace: Workspace, services: ServiceManager) -> BaseMemoryManager:
    """The memory that the agent's configuration names; an unknown name is told, and the first backend stands in."""
    shared, agent_id, config = workspace.shared, workspace.agent_id, workspace.config
    _, make, warning = shared.memory.backends.choose(config.running.memory_manager_backend)
    key = f"memory-backend/{agent_id}"
    if warning:
        shared.problems.report(key, f"agent {agent_id!r}: {warning}", severity="warning", agent_id=agent_id)
    else:
        shared.problems.clear(key)
    return make(memory_parts(workspace, services))


def memory_parts(workspace: Workspace, services: ServiceManager) -> MemoryParts:
    """What the memory works with. It may outlive this instance: who acts is asked at each use."""
    shared, agent_id, config, current = workspace.shared, workspace.agent_id, workspace.config, workspace.current
    local: LocalWorkspace = services.get(LOCAL)

    async def tell(title: str, body: str, group: str) -> None:
        key = f"memory/{agent_id}/{group}" if group else None  # what can be undone is told once, even over a crash
        await shared.inbox.add("memory", title, body, agent_id=agent_id, key=key, trace_id=group or None)

    ask = ModelAsk(
        shared.models, lambda: current.workspace.config, agent_id=agent_id, bus=shared.bus, clock=shared.clock
    )
    return MemoryParts(
        agent_id=agent_id,
        workspace=workspace.directory,
        state_dir=local.state_dir,
        config=config.running.memory,
        language=config.language,
        home=lambda: home_now(shared.config),
        zone=lambda: zone_now(shared.config),
        dreams=lambda: bool(current.workspace.config.cron.dream_cron),
        sessions=services.get(SESSIONS),
        ask=ask,
        tell=tell,
        daemon=shared.memory,
        clock=shared.clock,
        threads=shared.threads,
        problems=shared.problems,
        bus=shared.bus,
    )


def install_memory(tasks: Tasks) -> Install:
    """What the started memory adds to a workspace: hooks and tools. `tasks` owns searches that nobody waits for."""

    def install(workspace: Workspace) -> None:
        shared, key = workspace.shared, f"memory-tools/{workspace.agent_id}"
        try:
            link.install(
                workspace.extensions,
                workspace.memory,
                agent_id=workspace.agent_id,
                clock=shared.clock,
                problems=shared.problems,
                tasks=tasks,
            )
        except Exception as error:
            logger.exception("the memory of agent %s cannot be used in turns", workspace.agent_id)
            workspace.extensions.remove_owner(link.OWNER)
            told = f"agent {workspace.agent_id!r}: memory takes no part in turns: {error}"
            shared.problems.report(key, told, agent_id=workspace.agent_id)
        else:
            shared.problems.clear(key)

    return install


def home_now(config: ConfigStore) -> HomeConfig:
    """config.json, the last good one while it is broken, the defaults when it was never good."""
    try:
        return config.load_home()
    except QworkspaceError:
        return config.last_good_home() or HomeConfig()


def zone_now(config: ConfigStore) -> tzinfo:
    """The user's zone as config.json says it now."""
    return user_zone(home_now(config).user_timezone)


async def search_for_offline(manager: MultiAgentManager, question: str) -> list[OfflineHit]:
    """What the agent whose turn this is remembers about a question; nothing when that fails, which is logged."""
    scope = current_scope()
    workspace = manager.find(scope.agent_id) if scope is not None else None
    if workspace is None:
        return []
    try:
        found = await workspace.memory.search(Query(question, max_results=OFFLINE_HITS))
    except Exception:
        logger.exception("the offline answer of agent %s goes without memory", workspace.agent_id)
        return []
    hits = [hit for hit in found.hits if hit.bm25_rank is not None] or found.hits[:1]
    return [OfflineHit(f"{hit.path}:{hit.start_line}-{hit.end_line}", hit.text) for hit in hits]
