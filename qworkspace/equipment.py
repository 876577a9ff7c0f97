"""What every workspace is equipped with: its services, its built-in extensions, and what its turns work with."""

from __future__ import annotations

import logging

from qworkspace.base.files import Root
from qworkspace.chat import commands
from qworkspace.chat.closing import Closer
from qworkspace.chat.compactor import Compactor
from qworkspace.chat.controls import Controls, Leaving
from qworkspace.chat.prompt import PromptMaker
from qworkspace.chat.reliable import RetryPolicy
from qworkspace.chat.runner import TurnRunner
from qworkspace.chat.titles import make_title, wants_title
from qworkspace.chat.toolbox import ToolServices
from qworkspace.chat.tools.always import store_rule
from qworkspace.chat.tools.builtin import builtin_tools
from qworkspace.chat.turn import TurnMachine, TurnParts, find_command
from qworkspace.config.models import AgentConfig, PolicyRule
from qworkspace.memory.contract import SummarizeReason
from qworkspace.plugins.extensions import Hook, Phase, TurnContext
from qworkspace.sessions.models import TurnRequest
from qworkspace.sessions.store import SessionStore
from qworkspace.workspace.local import LOCAL, LocalWorkspace, local_workspaces
from qworkspace.workspace.registry import WorkspaceRegistry
from qworkspace.workspace.remembering import add_backends, home_now, install_memory, memory
from qworkspace.workspace.services import ServiceDescriptor, ServiceManager
from qworkspace.workspace.shared import SharedServices
from qworkspace.workspace.workspace import CHATS, MEMORY, SESSIONS, Workspace

logger = logging.getLogger(__name__)

OWNER = "builtin"
ENDS_THE_RUNNING_TURN = frozenset({"stop", "new"})


def equip(shared: SharedServices) -> WorkspaceRegistry:
    """The registry that makes this daemon's workspaces."""
    registry = WorkspaceRegistry(shared, turns)
    add_backends(shared.memory.backends, owner=OWNER)
    registry.services.add(LOCAL, local_workspaces(shared.config), owner=OWNER)
    registry.services.add(SESSIONS, sessions, owner=OWNER)
    registry.services.add(MEMORY, memory, owner=OWNER)
    registry.services.add(CHATS, chats, owner=OWNER)
    registry.extensions.add("commands", lambda workspace: commands.install(workspace.extensions), owner=OWNER)
    registry.extensions.add("tools", install_tools, owner=OWNER)
    registry.extensions.add("titles", install_titles, owner=OWNER)
    registry.started.add(MEMORY, install_memory(shared.memory.tasks), owner=OWNER)
    return registry


def install_tools(workspace: Workspace) -> None:
    """The built-in tools."""
    for tool in builtin_tools(lambda: _timezone(workspace.shared), workspace.shared.config.environ):
        workspace.extensions.tools.add(tool.name, tool, owner=OWNER)


def install_titles(workspace: Workspace) -> None:
    """Titles made by a model, after the first answer and beside what follows it."""

    async def begin(context: TurnContext) -> None:
        if wants_title(context):
            title = make_title(context, workspace.shared.models, workspace.sessions)
            workspace.runner.beside(title, name=f"title of {context.request.session_id}")

    workspace.extensions.hooks.add("titles", Hook(Phase.POST_RESPONSE, begin), owner=OWNER)


def sessions(workspace: Workspace) -> ServiceDescriptor:
    """The conversations and the turn journal."""
    shared, agent_id = workspace.shared, workspace.agent_id

    def make(services: ServiceManager) -> SessionStore:
        local: LocalWorkspace = services.get(LOCAL)
        return SessionStore(
            local.state_dir, clock=shared.clock, threads=shared.threads, problems=shared.problems, agent_id=agent_id
        )

    return ServiceDescriptor(SESSIONS, make, priority=10, depends_on=(LOCAL,))


def chats(workspace: Workspace) -> ServiceDescriptor:
    """The turns per session. It moves with every reload and asks at each turn which instance acts."""
    shared, agent_id, current = workspace.shared, workspace.agent_id, workspace.current

    def interrupts(request: TurnRequest) -> bool:
        """`/stop` and `/new` do not wait for what they are to end."""
        found = find_command(request.message.text, current.workspace.extensions)
        return isinstance(found, tuple) and found[0].name in ENDS_THE_RUNNING_TURN

    def make(services: ServiceManager) -> TurnRunner:
        store = services.get(SESSIONS)
        return TurnRunner(
            store,
            current.execute,
            Closer(store, shared.bus, shared.clock, agent_id=agent_id),
            agent_id=agent_id,
            clock=shared.clock,
            interrupts=interrupts,
            queue_limit=lambda: current.workspace.config.running.max_queued_turns,
        )

    return ServiceDescriptor(CHATS, make, priority=20, depends_on=(SESSIONS,))


def turns(workspace: Workspace) -> TurnMachine:
    """What carries out the turns of one instance, with the configuration that it has at each turn."""
    shared, store, runner = workspace.shared, workspace.sessions, workspace.runner

    def config() -> AgentConfig:
        return workspace.config

    policy = RetryPolicy.of(workspace.config.running.retry)
    compactor = Compactor(store, config=config, policy=policy, clock=shared.clock)
    prompts = PromptMaker(
        workspace.agent_id,
        Root(workspace.directory),
        timezone=lambda: _timezone(shared),
        threads=shared.threads,
        problems=shared.problems,
    )
    parts = TurnParts(
        agent_id=workspace.agent_id,
        workspace_dir=workspace.directory,
        config=config,
        extensions=workspace.extensions,
        sessions=store,
        models=shared.models,
        prompts=prompts,
        compactor=compactor,
        tools=tool_services(workspace),
        bus=shared.bus,
        problems=shared.problems,
        clock=shared.clock,
        policy=policy,
    )
    machine = TurnMachine(parts, runner.closer)
    machine.controls = Controls(
        runner, store, shared.models, compactor, config, workspace.extensions, leaving=leaving(workspace)
    )
    return machine


def leaving(workspace: Workspace) -> Leaving:
    """Lets memory know what is about to leave the context. What fails there is shown and holds nobody up."""
    shared, agent_id = workspace.shared, workspace.agent_id

    async def leave(session_id: str, reason: SummarizeReason) -> None:
        key = f"memory-leaving/{agent_id}"
        try:
            await workspace.memory.leaving(session_id, reason)
        except Exception as error:
            logger.exception("what leaves the context of session %s is not queued for memory", session_id)
            told = f"agent {agent_id!r}: a conversation could not be queued for memory: {error}"
            shared.problems.report(key, told, severity="warning", agent_id=agent_id)
        else:
            shared.problems.clear(key)

    return leave


def tool_services(workspace: Workspace) -> ToolServices:
    """What the tools of this instance's turns are given."""
    local: LocalWorkspace = workspace.services.get(LOCAL)
    shared, agent_id = workspace.shared, workspace.agent_id

    async def remember(tool: str, rule: PolicyRule) -> None:
        """Into agent.json; the watch brings it to this agent as it does every edit."""
        await shared.threads.run(store_rule, shared.config, agent_id, tool, rule)

    return ToolServices(
        sessions=workspace.sessions,
        approvals=shared.approvals,
        files=local.files,
        spill=local.spill,
        remember=remember,
        clock=shared.clock,
    )


def _timezone(shared: SharedServices) -> str | None:
    """The user's zone as config.json says it now; while that is broken, the last good one."""
    return home_now(shared.config).user_timezone
